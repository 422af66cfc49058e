"""A second of sound as 128 mel bands by 32 frames."""

from functools import lru_cache

import numpy as np

BANDS = 128
FRAMES = 32
WINDOW_SECONDS = 0.128
HOP_SECONDS = 0.032
FLOOR_DB = -50.0
SMOOTHING_BANDS = 4.0
"""Deviation of the Gaussian across bands; at 8 kHz a voice's harmonics are 5 to 12 bands apart."""
_SILENCE = 1e-10


def log_mel(clip: np.ndarray, rate: int) -> np.ndarray:
    """Return the power in dB below the clip's loudest point, from a floor on, standardised: [BANDS, FRAMES] float32.

    The second around the middle of the sound's energy counts, with silence where there is no more; pure silence is 0.

    The features tell words apart, not speakers and recordings: who cut the file decides where a word lies; smoothing
    takes away the voice's harmonics and leaves the formants; noise lies below the floor; loudness is the microphone's.
    """
    window, bank, positions = _tables(rate)
    half = len(window) // 2
    padded = np.zeros(positions[-1, -1] + 1, dtype=np.float32)
    clip = _second_around_the_middle(clip, rate)
    padded[half : half + len(clip)] = clip[: len(padded) - half]
    spectrum = np.fft.rfft(padded[positions] * window)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32) @ bank
    loudest = float(power.max())
    if loudest <= _SILENCE:
        return np.zeros((BANDS, FRAMES), dtype=np.float32)
    decibels = np.maximum(10 * np.log10(np.maximum(power / loudest, _SILENCE)), FLOOR_DB)
    deviation = decibels.std()
    return ((decibels - decibels.mean()) / (deviation if deviation > 0 else 1)).T.astype(np.float32)


def _second_around_the_middle(clip: np.ndarray, rate: int) -> np.ndarray:
    energy = clip.astype(np.float64) ** 2
    middle = int(energy @ np.arange(len(clip)) / max(energy.sum(), 1e-300))
    return np.pad(clip, rate)[middle + rate - rate // 2 :][:rate]


@lru_cache(maxsize=8)
def _tables(rate: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    length, hop = round(WINDOW_SECONDS * rate), round(HOP_SECONDS * rate)
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)).astype(np.float32)
    positions = hop * np.arange(FRAMES)[:, None] + np.arange(length)
    return window, _mel_filters(rate, length) @ _smoothing(), positions


def _mel_filters(rate: int, length: int) -> np.ndarray:
    """Triangles that overlap by half, equally spaced in mel, each of unit area (Slaney 1998): [w // 2 + 1, BANDS]."""
    frequencies = np.fft.rfftfreq(length, 1 / rate)
    edges = _hertz(np.linspace(0, _mel(rate / 2), BANDS + 2))
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    rising = (frequencies[:, None] - low) / (centre - low)
    falling = (high - frequencies[:, None]) / (high - centre)
    return (np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)).astype(np.float32)


def _smoothing() -> np.ndarray:
    bands = np.arange(BANDS)
    weights = np.exp(-0.5 * ((bands[:, None] - bands) / SMOOTHING_BANDS) ** 2)
    return (weights / weights.sum(axis=0)).astype(np.float32)


# Slaney's mel scale is linear up to 1 kHz (15 mel) and logarithmic above.
_KNEE_HERTZ, _KNEE_MEL, _LOG_STEP = 1000.0, 15.0, np.log(6.4) / 27


def _mel(hertz: float) -> float:
    if hertz < _KNEE_HERTZ:
        return hertz * _KNEE_MEL / _KNEE_HERTZ
    return _KNEE_MEL + np.log(hertz / _KNEE_HERTZ) / _LOG_STEP


def _hertz(mel: np.ndarray) -> np.ndarray:
    linear = mel * _KNEE_HERTZ / _KNEE_MEL
    return np.where(mel < _KNEE_MEL, linear, _KNEE_HERTZ * np.exp(_LOG_STEP * (mel - _KNEE_MEL)))
