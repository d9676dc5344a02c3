"""Every number of the label readings that is neither data nor arithmetic, and where each comes from.

derived      it follows from what it is used for
convention   a limit on time or memory, or a number of points, that any other of its size would serve as well
measured     set on development seeds: by `benchmarks/label_grid.py --seed 100` unless another command is named
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CountConstants:
    """The readings of single updates."""

    # The posterior over counts that add up (posterior.py)
    newton_steps: int = 8  # to the tilt at which the counts add up; convention
    least_variance: float = 0.05  # of a sum of counts, in samples squared, below which it is taken as known; convention
    floor: float = -80.0  # log-likelihoods further below the best are taken as equally impossible; convention
    most_points: int = 160  # counts that are weighed for a class; convention
    many_each: int = 5  # samples a class from which means are decided by, not tails; measured

    # Whole counts behind a measured mean probability (whole_counts.py)
    noises: tuple[float, ...] = (0.003, 0.02, 0.1, 0.3)  # in samples, from rounding to half a count; convention
    cells: int = 20_000_000  # numbers of the largest table at a time; convention

    # A model that tells classes apart (factorised_bayes.py)
    leak_nodes: int = 8  # quantiles of what other classes' samples take away; convention
    leak_turns: int = 3  # posterior and leak in turns; convention
    jitter: float = 0.05  # samples: rounding of float32 updates and what the model leaves out; measured
    trained: float = 0.05  # own probability above chance from which labelled samples set a weight's scale; convention

    # The same without labelled samples: the hardness with most evidence is taken (readings.py)
    hardnesses: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.6, 0.85)  # about a factor of two; convention
    hardness_doubt: float = 0.5  # relative, of a single class; measured with --blind
    hardness_spread: float = 0.7  # of single samples, over the most that a mean allows; measured with --blind
    hardness_samples: float = 5.0  # labelled samples a class that would know as much; measured with --blind

    # The drift of a model that treats all inputs alike (lattice.py, major_classes.py)
    lattice_classes: int = 50  # with fewer there are too few rare classes for their lattice to be seen; measured
    small: float = 4.5  # samples: larger counts are moved by more than a step of the lattice; measured
    negative: float = -0.6  # samples: a class that reads as less is not on the lattice; derived: half a step and noise
    excluded: float = 0.08  # what leaving a class out costs: the mean squared distance of any number, 1/12; derived
    violent_cost: float = 1.0  # before a violent drift is preferred to a slow one; measured
    read_as: float = 0.8  # of what major classes read as is there; samples of a short step weigh more; derived
    damping: float = 0.25  # how far the model after tells where probability went in a violent drift; measured
    way_points: int = 20  # of the way from the model before to the model after; convention
    halvings: int = 20  # of an interval in which a rate is sought; convention
    turns: int = 12  # between amounts and way; convention
    calm: float = 0.95  # T / S from which the way is a straight one; measured
    fast: float = 0.75  # T / S up to which it is not; measured
    agreement: float = 0.2  # share of the samples by which two readings of the way may differ; measured
    settled: float = 0.5  # probability of one class after training from which nothing but the push is left; measured

    # Which reading is believed (readings.py)
    one_voice: float = 10.0  # log-odds with which one client counts for others of its round, at most; convention

    # Whether a gradient can be one (each_update.py)
    rounding: float = 1.01  # times what a gradient can add up to: float16 updates are off by less; convention
    liars: float = 0.05  # share of the updates that may be anything; convention

    # What is stated (readings.py)
    stated: float = 0.9  # probability of the interval of a count; convention
    rough_doubt: float = 0.5  # relative, of counts in proportion to what is negative, or mixed with such; measured
    between_spread: float = 0.25  # of mixed ones, for intervals of counts; `label_zoo.py --wire --seed 77`
    ebi_spread: float = 0.35  # of the others; the same
    modelled_sure_power: float = 1.5  # where a model of the samples is assumed, single counts are less sure; measured

    # Spans of hidden layers (span_counts.py, span_rehearsal.py, span_reader.py)
    span_rehearsals: int = 120  # batches made of auxiliary samples; more hardly help; measured
    span_folds: int = 5  # of these; convention
    span_ridge: float = 10.0  # of the regression; measured
    span_unlike: float = 5.0  # standard deviations beyond which an update is unlike the rehearsals; convention
    span_least_r2: float = 0.05  # on rehearsals unseen, below which nothing was learnt; convention
    span_largest: float = 0.7  # of a class's samples that a rehearsed batch takes, the others are looked at; convention
    span_wildest: float = 3.0  # spread of the logarithms of skewed shares, at most; convention
    span_favoured: int = 3  # favoured classes of a rehearsed batch, at most; convention
    span_models: int = 12  # pairs of model and batch size that are rehearsed in a trace, some seconds each; convention
    span_samples: int = 512  # in a batch, at most: rehearsing grows with the cube; convention

    # The update by itself (update_alone.py)
    unlike_inputs: float = 0.3  # how much single samples' logits differ, over how large they are; measured with --blind

    # Two classes, read of all clients of a round (two_classes.py)
    share_points: int = 100  # shares that are weighed; convention
    unsure_points: int = 20  # values of each of the model's two unknowns; convention
    kinds_of_clients: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 30.0)  # Dirichlet: nearly one class to alike; convention
    clients_differ: float = 0.1  # how far the model's answers to a class differ among clients, over g; `--wire --few`
    answer_differs: float = 0.03  # and those to mean features from the mean answer, at least; convention

    # Behind a known defense (defended.py, defended_layers.py, layer_signals.py)
    scales: int = 9  # tried for what clipping left, from 0.03 to 1; convention
    clean: float = 0.2  # samples of noise, below which undefended readings are as good; measured
    unclipped_odds: float = 3.0  # log-odds of no clipping before any one scale; measured
    scale_doubt: float = 0.06  # relative, of the scale that the model's own gradient norms let expect; measured
    filled: float = 0.4  # share of the classes that are taken to hold public samples alone; convention
    unsent: float = 1e6  # samples: the doubt of a class of which nothing was sent; convention
    few_weights_doubt: float = 0.25  # relative, of a class read from a few of its weights; measured
    signal_inputs: int = 16  # inputs on which the layers' signals are measured; convention
    norm_batches: int = 4  # whose gradient norm tells what clipping leaves; convention


COUNTS = CountConstants()
