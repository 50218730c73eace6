"""Has a language model rewrite requests, and fuses what its queries find."""
