"""What toolgen and toolweaver share: a language model that writes tool ids."""
