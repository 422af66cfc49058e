"""Scores of several labels an example, one example after another, without torch; and data that have such labels."""

import numpy as np


def naive_scores(logits, y):
    """The loss and all scores by their names, of logits and labels [n, k]."""
    losses, right, wrong, hits = [], 0, 0, dict.fromkeys((1, 3, 5), 0)
    for row, labels in zip(np.asarray(logits, np.float64).tolist(), np.asarray(y).tolist()):
        odds = [1 / (1 + np.exp(-logit)) for logit in row]
        losses.append(-np.mean([np.log(p if label else 1 - p) for p, label in zip(odds, labels)]))
        ranked = sorted(range(len(row)), key=lambda place: (-row[place], place))
        for k in hits:
            hits[k] += sum(labels[place] for place in ranked[:k])
        right += sum(p > 0.5 and label == 1 for p, label in zip(odds, labels))
        wrong += sum((p > 0.5) != (label == 1) for p, label in zip(odds, labels))
    scores = {f"P@{k}": hits[k] / k / len(losses) for k in hits if k <= len(labels)}
    return {"loss": np.mean(losses), **scores, "micro-F1": 2 * right / max(2 * right + wrong, 1)}


def write(path, labels=6, shape=(10,)):
    """An .npz whose labels are linear in the features; some examples have none."""
    random = np.random.default_rng(labels)
    features = np.prod(shape)
    weights, arrays = random.normal(size=(features, labels)), {}
    for split, count in (("train", 120), ("test", 50)):
        x = random.normal(size=(count, features)).astype(np.float32)
        y = (x @ weights > 0.5 * features**0.5).astype(np.int64)
        arrays |= {f"x_{split}": x.reshape(count, *shape), f"y_{split}": y}
    np.savez(path, **arrays)
    return path
