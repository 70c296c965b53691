"""Exact convolutions of integers by the fast Fourier transform, digit by digit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dpscale.base.numerics import Floats, Integers, NDArray

FFT_ERROR = 64.0  # bound of the error of a convolution in units of roundoff · log₂ length · both norms


def exact_convolution(known: Integers, columns: NDArray[Any]) -> NDArray[Any]:
    """Return the convolution of a sequence of m integers with others, exact.

    Both are divided into digits of so few bits that the error of a convolution by the fast Fourier transform is below
    1/4. Results beyond 64 bits need an array of Python integers.

    Parameters
    ----------
    known : ndarray of int64, shape (m,)
    columns : ndarray, shape (k, m)

    Returns
    -------
    ndarray, shape (k, 2m)
    """
    count = len(known)
    length, bits = _padded(count), _digit_bits(count)
    spectra = [np.fft.rfft(digit, length) for digit in _digits(known, bits)]
    total = np.zeros((len(columns), 2 * count), columns.dtype)

    for place, digit in enumerate(_digits(columns, bits)):
        spectrum = np.fft.rfft(digit, length)
        for index, transformed in enumerate(spectra):
            product = np.rint(np.fft.irfft(transformed * spectrum, length)[:, : 2 * count]).astype(np.int64)
            total += product.astype(total.dtype) << bits * (place + index)
    return total


def _padded(rows: int) -> int:
    """Return a length at which a cyclic convolution of two columns does not wrap around."""
    return 1 << (2 * rows - 1).bit_length()


def _digit_bits(rows: int) -> int:
    """Return the bits of digits whose convolution has an error below 1/4, by the norms of two columns of digits."""
    error = FFT_ERROR * np.finfo(np.float64).eps * math.log2(_padded(rows)) * rows
    return int(math.log2(0.25 / error) / 2) + 1


def _digits(values: NDArray[Any], bits: int) -> Iterator[Floats]:
    """Yield digits with values = Σ digit_i 2^(bits i), |digit| ≤ 2^(bits−1).

    A digit is the remainder modulo 2^bits, between −2^(bits − 1) and 2^(bits − 1) − 1.
    """
    half = 1 << (bits - 1)
    while values.any():
        digit = (values + half & (2 * half - 1)) - half
        values = (values - digit) >> bits
        yield digit.astype(np.float64)
