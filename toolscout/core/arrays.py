"""The numpy array types that the package uses, by what their elements are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]
Bytes = NDArray[np.int8]
Bools = NDArray[np.bool_]
