"""Estimator that generates synthetic tables: fit, sample, save and load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from fedneighbors._lazy import optional_module
from fedneighbors._typing import Array, Progress, silent
from fedneighbors.datasets._table import Column, Table
from fedneighbors.errors import DataError
from fedneighbors.methods.fedpnn.synthesis._encoding import NominalCoding, fit_transform
from fedneighbors.methods.fedpnn.synthesis._generation import (
    Noise,
    RowsByCategory,
    TrainingSettings,
    check_size,
)
from fedneighbors.methods.fedpnn.synthesis._model import LABEL, SynthesisModel, TablePart
from fedneighbors.methods.fedpnn.synthesis._rare_values import (
    merge_categories,
    replace_rare_numbers,
)
from fedneighbors.methods.fedpnn.synthesis._tabular import as_table
from fedneighbors.tabular._ownership import plain_targets
from fedneighbors.tabular._schema import Label

Units = Sequence[int] | Mapping[Any, Sequence[int]]


class _TrainingJob(NamedTuple):
    """Name, rows and settings of a generator to train."""

    name: str
    table: Table
    settings: TrainingSettings


@dataclass(eq=False, repr=False)
class TabularSynthesizer(BaseEstimator):  # type: ignore[misc]
    """Generator of synthetic tables: a conditional tabular GAN.

    A number is encoded by a mode of a Gaussian mixture and the position in that mode, a category as
    a one-hot vector, a missing cell as an additional category. A generator is trained against a
    critic (WGAN-GP, PacGAN), conditioned on nominal columns, with training by sampling [1]_.
    FedPNN's modification draws noise from two normal distributions and trains one generator per
    class [2]_.

    Parameters
    ----------
    noise : {"normal", "mixture", "concat"}
        ``"normal"``: N(0, 1), as in [1]_. ``"mixture"``: the noise of a row is N(0, 1) or
        N(0.2, 2), each with probability 1/2; 2 is the variance. ``"concat"``: half of the entries
        are N(0, 1), half N(0.2, 2).
    per_class : bool
        Train one generator per class. If False, train one for all classes, with the class as a
        nominal column.
    generator, critic : sequence of int, or mapping of label to sequence of int
        Number of units of each hidden layer, the same for all classes or by class.
    epochs : int, or mapping of label to int
        Number of epochs, the same for all classes or by class.
    batch_size : int
        Number of rows per batch; lowered to a multiple of ``pac`` for a class with fewer rows. Rows
        are drawn with replacement.
    pac : int
        Number of rows that the critic scores together.
    critic_steps : int
        Number of critic steps per generator step.
    dropout : float
        Fraction of the critic's hidden units that are dropped at each step.
    embedding : int
        Length of a noise vector.
    learning_rate : float
        Learning rate of Adam, for both networks.
    informed : bool
        Initialize the generator with the frequencies of categories and modes in the rows. If False,
        as in [1]_, the initial frequencies are nearly equal.
    max_modes : int
        Maximum number of Gaussian modes of a numeric column.
    repeated_share : float or None
        A number in at least this fraction of the rows becomes a category and is reproduced exactly,
        so that peaks, for example at zero, are preserved. None, as in [1]_, restricts this to
        constant columns.
    min_count : int or None
        Number of records that hold each value of the synthetic rows. Categories of fewer records
        are merged into ``"other"`` (into missing cells if they are numbers); numbers beyond the
        ``min_count``-th smallest and largest are clipped; repeated numbers and modes of fewer
        records are not used. Numbers are counted among the training rows of a generator, categories
        in the whole table. Text columns of which most cells are distinct, such as names, are merged
        as a whole, with a warning. None, as in [1]_, keeps all values.
    categorical_features : sequence of names or positions, optional
        Numeric columns to treat as nominal; text columns are always nominal.
    random_state : int, RandomState or None
        Seed of the fit.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels, ascending; only if labels were given to :meth:`fit`.
    model_ : SynthesisModel
        Fitted encodings and generators.
    n_features_in_ : int
        Number of columns.

    Notes
    -----
    With ``noise="normal", repeated_share=None, informed=False`` this is the method of [1]_, except
    that mixtures are fitted to groups of rows by :func:`~._mixture.fit_modes`, and that integer
    columns are rounded to integers. The same seed gives bit-identical results on the same
    processor.

    Distributions of single columns are learned quickly, dependencies between columns slowly. For
    two columns with a correlation of 0.9, networks of 128 and 128 units reach a correlation below
    0.1 after 1,200 steps with the other defaults, which are those of [1]_, and 0.77 with
    ``dropout=0, pac=1, learning_rate=1e-3``. On a few hundred rows, longer training may worsen the
    synthetic rows; measure their quality with :func:`~._report.quality_record`.

    Synthetic rows are not differentially private: a generator may repeat real rows, and values that
    many rows share are reproduced exactly. ``min_count`` hides rare values, not rare combinations
    of frequent values, and not that a number is missing. Integers between the bounds of a column
    may equal a rare real one by chance: leave identifiers out. Check synthetic rows with
    :func:`~._quality.nearest_records` and :func:`~._quality.rare_values` before you share them.

    References
    ----------
    .. [1] Xu et al., "Modeling Tabular Data using Conditional GAN", NeurIPS 2019.
    .. [2] FedPNN, section 4.1, step a.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(60, 2))
    >>> synthesizer = TabularSynthesizer(generator=(8,), critic=(8,), epochs=1).fit(x)
    >>> synthesizer.sample(5).shape
    (5, 2)
    """

    noise: Noise = "mixture"
    per_class: bool = True
    generator: Units = (256, 256)
    critic: Units = (256, 256)
    epochs: int | Mapping[Any, int] = 300
    batch_size: int = 500
    pac: int = 10
    critic_steps: int = 1
    dropout: float = 0.5
    embedding: int = 128
    learning_rate: float = 2e-4
    informed: bool = True
    max_modes: int = 10
    repeated_share: float | None = 0.05
    min_count: int | None = 5
    categorical_features: Sequence[str | int] | None = None
    random_state: int | np.random.RandomState | None = 0
    classes_: Array = field(init=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags

    def fit(self, X: Any, y: Any = None, *, progress: Progress = silent) -> Self:
        """Fit the encodings and train the generators.

        Parameters
        ----------
        X : Table, data frame or array of shape (n_rows, n_features)
            Rows; missing cells are NaN or None.
        y : array of shape (n_rows,), optional
            Labels.
        progress : callable
            Called with the number of epochs done, their total number, and a text that names the
            class.

        Returns
        -------
        TabularSynthesizer
            Self.

        Raises
        ------
        MissingExtraError
            If PyTorch is not installed.
        DataError
            If a class, or the table, has fewer than two rows or twice ``min_count``, or a number is
            infinite.
        ValueError
            If a setting is out of range, or the training diverges.
        """
        table, input_format = as_table(X, self.categorical_features)
        if not isinstance(X, Table):
            validate_data(self, X, skip_check_array=True)
        self.n_features_in_ = len(table.names)
        labels = None if y is None else self._check_labels(y, table)
        names, sizes = ((), ()) if labels is None else np.unique(labels, return_counts=True)
        classes, counts = tuple(np.array(names).tolist()), tuple(np.array(sizes).tolist())
        min_count = self._check_min_count(counts, classes)
        table = merge_categories(table, min_count, input_format.coded)
        seed = check_random_state(self.random_state).randint(2**31)
        jobs = self._make_jobs(table, labels, classes)
        parts = _fit_parts(
            jobs,
            max_modes=self.max_modes,
            repeated_share=self.repeated_share,
            min_count=min_count,
            seed=seed,
            progress=progress,
        )
        self._set_model(SynthesisModel(input_format, classes, counts, parts))
        return self

    def sample(self, n: int, y: Any = None, *, random_state: int = 0) -> Any:
        """Generate synthetic rows.

        Parameters
        ----------
        n : int
            Number of rows.
        y : label, optional
            Generate rows of this class only. None: with the class frequencies of the training rows.
        random_state : int
            Seed of the rows.

        Returns
        -------
        X : Table, data frame or array
            Rows in the format of the training rows.
        y : array of shape (n,)
            Labels; only if labels were given to :meth:`fit`.

        Raises
        ------
        ValueError
            If ``n`` is not positive, or the class does not exist.
        """
        check_is_fitted(self)
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise ValueError(f"n must be a positive integer, got {n!r}")
        model = self.model_
        if not model.classes:
            if y is not None:
                raise ValueError(f"y={y!r} requests a class, but there were no labels in the fit")
            return model.form.restore(model.sample_unlabeled(int(n), random_state))
        table, positions = model.sample_labeled(int(n), random_state, self._check_class(y))
        return model.form.restore(table), self.classes_[positions]

    def save(self, path: str | Path) -> None:
        """Save everything that sampling needs to a file.

        The file contains no training rows.

        Parameters
        ----------
        path : path
            Path of the file; its folder must exist.
        """
        check_is_fitted(self)
        self.model_.save(path)

    @classmethod
    def load(cls, path: str | Path) -> "TabularSynthesizer":
        """Load a synthesizer written by :meth:`save`; sampling needs no PyTorch.

        Parameters that sampling depends on are restored; the others have their defaults.

        Parameters
        ----------
        path : path
            Path of the file.

        Raises
        ------
        ModelFileError
            If the file is missing, truncated or altered, or of another type or version.
        """
        model = SynthesisModel.load(path)
        generator = model.parts[0].generator
        new = cls(noise=generator.noise, per_class=model.per_class, embedding=generator.embedding)
        new.n_features_in_ = len(model.columns)
        if model.form.kind == "frame":
            new.feature_names_in_ = np.array(model.columns, dtype=object)
        new._set_model(model)
        return new

    def _set_model(self, model: SynthesisModel) -> None:
        self.model_ = model
        if model.classes:
            self.classes_ = np.array(model.classes)

    def _check_labels(self, y: Any, table: Table) -> Array:
        labels: Array = column_or_1d(plain_targets(y), warn=True)
        check_consistent_length(next(iter(table.columns.values())), labels)
        check_classification_targets(labels)
        if LABEL in table.columns:
            raise ValueError(f"the column name {LABEL!r} is reserved; rename the column")
        return labels

    def _check_class(self, y: Any) -> int | None:
        if y is None:
            return None
        positions = [position for position, label in enumerate(self.model_.classes) if label == y]
        if not positions:
            raise ValueError(f"there is no class {y!r}; the classes are {self.classes_[:20]}")
        return positions[0]

    def _check_min_count(self, counts: Sequence[int], classes: Sequence[Label]) -> int:
        """Return ``min_count``, 0 for None; raise if a class has fewer rows."""
        if self.min_count is None:
            return 0
        check_size("min_count", self.min_count)
        for count, label in zip(counts, classes, strict=True):
            if count < self.min_count and not self.per_class:
                raise DataError(
                    f"class {label!r} has {count} rows, fewer than min_count={self.min_count}; "
                    "leave them out, or lower min_count"
                )
        return int(self.min_count)

    def _make_jobs(
        self, table: Table, labels: Array | None, classes: tuple[Label, ...]
    ) -> list[_TrainingJob]:
        if labels is None:
            return [_TrainingJob("the table", table, self._make_settings(None, ()))]
        if not self.per_class:
            numbers = {label: str(position) for position, label in enumerate(classes)}
            column: Column = np.array([numbers[label] for label in labels.tolist()], np.object_)
            labeled = Table({**table.columns, LABEL: column}, table.source)
            return [_TrainingJob("all classes", labeled, self._make_settings(None, ()))]
        return [
            _TrainingJob(
                f"class {label!r}", table.take(labels == label), self._make_settings(label, classes)
            )
            for label in classes
        ]

    def _make_settings(self, label: Any, classes: tuple[Label, ...]) -> TrainingSettings:
        generator = _setting_of_class("generator", self.generator, label, classes)
        critic = _setting_of_class("critic", self.critic, label, classes)
        values = {setting.name: getattr(self, setting.name) for setting in fields(TrainingSettings)}
        values["generator"], values["critic"] = tuple(generator), tuple(critic)
        values["epochs"] = _setting_of_class("epochs", self.epochs, label, classes)
        return TrainingSettings(**values)


def _setting_of_class(name: str, value: Any, label: Any, classes: tuple[Label, ...]) -> Any:
    """Return the setting of a class, looked up in a mapping."""
    if not isinstance(value, Mapping):
        return value
    if not classes:
        raise ValueError(
            f"{name} is a mapping of labels, but there is one generator for all rows; use one "
            "value, or give labels and per_class=True"
        )
    if set(value) != set(classes):
        raise ValueError(f"{name} must name the classes {list(classes)}, got {list(value)}")
    return value[label]


def _fit_parts(
    jobs: Sequence[_TrainingJob],
    *,
    max_modes: int,
    repeated_share: float | None,
    min_count: int,
    seed: int,
    progress: Progress,
) -> tuple[TablePart, ...]:
    """Fit the encoding and train the generator of each job."""
    for job in jobs:
        if job.table.n_rows < 2:
            raise DataError(
                f"{job.name} has {job.table.n_rows} row (1 sample), expected 2 or "
                "more: a generator of a single row would repeat it. Leave the row out, or use "
                "per_class=False"
            )
        if job.table.n_rows < 2 * min_count:
            raise DataError(
                f"{job.name} has {job.table.n_rows} rows, expected {2 * min_count} or more: twice "
                f"min_count={min_count}. Leave the rows out, use per_class=False, or lower it"
            )
    optional_module("torch", "torch")
    from fedneighbors.methods.fedpnn.synthesis._training import train

    total, n_done, parts = sum(job.settings.epochs for job in jobs), 0, []
    for index, job in enumerate(jobs):
        table = replace_rare_numbers(job.table, min_count, repeated_share)
        transform = fit_transform(
            table, max_modes=max_modes, repeated_share=repeated_share, min_count=min_count
        )
        codes, positions = transform.codes(table, np.random.default_rng([seed, index, 0]))
        nominal = [k for k, c in enumerate(transform.codings) if isinstance(c, NominalCoding)]
        widths = [transform.codings[k].width for k in nominal]
        rows = RowsByCategory.of(codes[:, nominal], widths)

        def report(
            epoch: int, _: int, step: str, *, epochs_before: int = n_done, name: str = job.name
        ) -> None:
            progress(epochs_before + epoch, total, f"{step}, {name}")

        generator = train(
            transform.matrix(codes, positions),
            rows,
            transform.layout,
            nominal,
            job.settings,
            seed=(seed, index, 1),
            progress=report,
        )
        parts.append(TablePart(transform, generator, rows.conditions(), table.n_rows))
        n_done += job.settings.epochs
    return tuple(parts)
