"""One second of sound as 128 mel bands by 32 frames."""

from functools import lru_cache

import numpy as np

BANDS = 128
FRAMES = 32
WINDOW_SECONDS = 0.128
HOP_SECONDS = 0.032
FLOOR_DB = -80.0
_SILENCE = 1e-10


def log_mel(clip: np.ndarray, rate: int) -> np.ndarray:
    """Power in dB below the clip's loudest point, no less than -80: [BANDS, FRAMES] float32.

    ``clip`` [any length] float32 at ``rate`` Hz is padded with silence or cut to one second. Frames are centred on
    multiples of the hop, so every rate gives 32 of them; bands run from 0 to rate / 2. Pure silence is -80 everywhere.
    """
    window, bank, positions = _tables(rate)
    half = len(window) // 2
    padded = np.zeros(positions[-1, -1] + 1, dtype=np.float32)
    clip = clip[:rate]
    padded[half : half + len(clip)] = clip[: len(padded) - half]
    spectrum = np.fft.rfft(padded[positions] * window)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32) @ bank
    loudest = max(float(power.max()), _SILENCE)
    decibels = 10 * np.log10(np.maximum(power, _SILENCE) / loudest)
    if loudest == _SILENCE:
        decibels[:] = FLOOR_DB
    return np.maximum(decibels, FLOOR_DB).T


@lru_cache(maxsize=8)
def _tables(rate: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A Hann window [w], the mel filters [w // 2 + 1, BANDS], and which sample each frame takes: [FRAMES, w]."""
    length, hop = round(WINDOW_SECONDS * rate), round(HOP_SECONDS * rate)
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)).astype(np.float32)
    positions = hop * np.arange(FRAMES)[:, None] + np.arange(length)
    return window, _mel_filters(rate, length), positions


def _mel_filters(rate: int, length: int) -> np.ndarray:
    """Triangles that overlap by half, equally spaced in mel, each of unit area (Slaney 1998): [w // 2 + 1, BANDS]."""
    frequencies = np.fft.rfftfreq(length, 1 / rate)
    edges = _hertz(np.linspace(0, _mel(rate / 2), BANDS + 2))
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    rising = (frequencies[:, None] - low) / (centre - low)
    falling = (high - frequencies[:, None]) / (high - centre)
    return (np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)).astype(np.float32)


# Slaney's mel scale is linear up to 1 kHz (15 mel) and logarithmic above.
_KNEE_HERTZ, _KNEE_MEL, _LOG_STEP = 1000.0, 15.0, np.log(6.4) / 27


def _mel(hertz: float) -> float:
    if hertz < _KNEE_HERTZ:
        return hertz * _KNEE_MEL / _KNEE_HERTZ
    return _KNEE_MEL + np.log(hertz / _KNEE_HERTZ) / _LOG_STEP


def _hertz(mel: np.ndarray) -> np.ndarray:
    linear = mel * _KNEE_HERTZ / _KNEE_MEL
    return np.where(mel < _KNEE_MEL, linear, _KNEE_HERTZ * np.exp(_LOG_STEP * (mel - _KNEE_MEL)))
