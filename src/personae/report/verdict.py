"""What a run's figures say in plain words: who won, by how much, whether that is noise, what left, how long it took."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from personae.report.measured import Difference, Measured, difference
from personae.report.records import Metrics, Record, Run, StageRecord, rate_of
from personae.report.wording import duration, joined, percent, size
from personae.words import counted

USUAL_RATE = 1e-2  # of false accepts: the one that people can picture
NOISE = "no difference that these data can show"


class Role(StrEnum):
    """What a model stands for in the comparison."""

    START = "start"
    ALONE = "alone"
    TOGETHER = "together"
    POOLED = "pooled"


@dataclass(frozen=True)
class Question:
    """A figure that models are compared by: where it is measured, and at which rate of false accepts."""

    name: str
    heading: str
    metric: str

    @property
    def rate(self) -> float | None:
        return rate_of(self.metric)

    @property
    def at(self) -> str:
        """`at 1% false accepts`, for a sentence."""
        return f"at {percent(self.rate)} false accepts" if self.rate is not None else "at the first guess"


@dataclass(frozen=True)
class Model:
    """The shared model after a stage, or the models that its clients use, with its figures by question."""

    label: str
    role: Role
    stage: StageRecord
    personal: bool
    figures: Mapping[str, Measured]
    sent: int
    """Bytes that all clients sent to the server in this stage, figures apart."""


@dataclass(frozen=True)
class Row:
    """A model for a table: a cell for each heading, and whether it is the best of its column."""

    label: str
    role: Role
    cells: tuple[str, ...]
    best: tuple[bool, ...]
    gain: Difference | None
    """Over the baseline, by the figure that decides."""


@dataclass(frozen=True)
class Verdict:
    """`sentences` are three at most; `remarks` are what else is worth a sentence."""

    sentences: tuple[str, ...]
    remarks: tuple[str, ...]
    headings: tuple[str, ...]
    rows: tuple[Row, ...]
    caption: str
    questions: tuple[Question, ...]
    decisive: Question | None
    models: tuple[Model, ...]
    best: Model | None
    """Of those that keep faces where they are."""
    baseline: Model | None


def verdict(run: Run, baseline: str | None = None) -> Verdict:
    """`baseline`: the stage to compare with; by default training alone, or what the methods began with."""
    questions = _questions(run)
    models = _models(run, questions)
    decisive, compared = _decisive(questions, models) if baseline is None else _against(baseline, questions, models)
    best = _best(models, decisive)
    headings, rows = _table(models, questions, compared, decisive)
    other = compared if compared is not best else _second(models, best, decisive)
    won = _who_won(best, other, decisive, so_far=bool(run.unfinished)) or _nobody_won(run, models, decisive)
    sentences = (*won, *_what_left(run), *_how_long(run))
    remarks = (*_pooled(models, best, decisive), *_own_models(models, questions))
    return Verdict(
        sentences=sentences,
        remarks=remarks,
        headings=headings,
        rows=rows,
        caption=_caption(questions),
        questions=questions,
        decisive=decisive,
        models=models,
        best=best,
        baseline=compared,
    )


def nearest(metrics: Sequence[str], rate: float = USUAL_RATE) -> str | None:
    """The true accept rate whose false accept rate is nearest to this one; any other figure where there is none."""
    rates = {name: found for name in metrics if (found := rate_of(name))}
    return min(rates, key=lambda name: abs(math.log(rates[name] / rate)), default=None)


def _questions(run: Run) -> tuple[Question, ...]:
    """New people are those of the server's held-out faces; own people are those of the clients."""
    found = []
    held = dict.fromkeys(
        name.rpartition("/")[2]
        for record in run.records.values()
        for name in record.final_metrics
        if name.startswith("heldout")
    )
    if metric := nearest([name for name in held if name.startswith("tar@")]):
        found.append(Question("new", "new people", metric))
    own = dict.fromkeys(
        name.partition("/")[2]
        for record in run.records.values()
        for figures in record.last_clients.values()
        for name in figures
    )
    among_all = [name for name in own if name.startswith("1:1 tar@")]
    within = [name for name in own if name.startswith("tar@")]
    if metric := nearest(among_all) or nearest(within) or next((name for name in own if name == "rank1"), None):
        found.append(Question("own", "own people", metric))
    return tuple(found)


def _models(run: Run, questions: Sequence[Question]) -> tuple[Model, ...]:
    found = _given(run, questions)
    shared_of: dict[str, Mapping[str, Measured]] = {}
    for stage in run.stages:
        record, role = run.records[stage.name], _role(run, stage)
        sent = sum(
            count for (way, kind), count in record.payloads.items() if way == "up" and not run.described(kind).is_figure
        )
        shared = {each.name: known for each in questions if (known := _measured(record, each, "global"))}
        personal = {each.name: known for each in questions if (known := _measured(record, each, "personal"))}
        before = shared_of.get(stage.after or "")
        shared_of[stage.name] = shared
        has_shared = run.has_shared_model(stage) if stage.federated else shared != before
        has_personal = bool(personal) and any(personal[name] != shared.get(name) for name in personal)
        if shared and has_shared:
            found.append(Model(stage.label, role, stage, False, shared, sent))
        if has_personal:
            label = f"{stage.label}, personal" if has_shared else stage.label
            found.append(Model(label, role, stage, True, personal, sent))
    return tuple(found)


def _given(run: Run, questions: Sequence[Question]) -> list[Model]:
    """The weights that the experiment names, as they were before any training."""
    if not run.config.get("weights") or not run.stages:
        return []
    first = run.records[run.stages[0].name]
    before = first.benchmarks.get(0, {})
    figures = {
        each.name: Measured.mean([_resampled(first.given, name, before[name]) for name in before if _is_of(name, each)])
        for each in questions
        if any(_is_of(name, each) for name in before)
    }
    for each in questions:
        if each.name == "own" and (own := _over_clients(first, f"global/{each.metric}", first.first_clients)):
            figures[each.name] = own
    label = "the given weights"
    return [Model(label, Role.START, StageRecord("", label), False, figures, 0)] if figures else []


def _role(run: Run, stage: StageRecord) -> Role:
    if stage.pools_faces:
        return Role.POOLED
    if any(run.has_shared_model(each) for each in _line(run, stage)):
        return Role.TOGETHER
    return Role.ALONE if stage.federated else Role.START


def _line(run: Run, stage: StageRecord) -> list[StageRecord]:
    """The federated stages that it comes from, itself included."""
    by_name = {each.name: each for each in run.stages}
    line: list[StageRecord] = []
    at: StageRecord | None = stage
    while at is not None and at not in line:
        line.append(at)
        at = by_name.get(at.after) if at.after else None
    return [each for each in line if each.federated]


def _measured(record: Record, question: Question, kind: str) -> Measured | None:
    if question.name == "own":
        return _over_clients(record, f"{kind}/{question.metric}", record.last_clients)
    places = [name.rpartition("/")[0] for name in record.final_metrics if _is_of(name, question)]
    if kind == "personal":
        found = [_over_clients(record, f"personal/{place}/{question.metric}", record.last_clients) for place in places]
        return Measured.mean([each for each in found if each]) if any(found) else None
    names = [f"{place}/{question.metric}" for place in places]
    results = [_resampled(record.evaluation or {}, name, record.final_metrics[name]) for name in names]
    return Measured.mean(results) if results else None


def _resampled(evaluation: Mapping[str, Any], name: str, value: float) -> Measured:
    """A figure of a benchmark, with its value in every resample where the evaluation has that."""
    place, _, metric = name.rpartition("/")
    return Measured(value, tuple(evaluation.get(place, {}).get("resampled", {}).get(metric, ())))


def _is_of(name: str, question: Question) -> bool:
    return name.startswith("heldout") and name.rpartition("/")[2] == question.metric


def _over_clients(record: Record, name: str, clients: Mapping[str, Metrics]) -> Measured | None:
    """Of the clients that took part in training."""
    known = {
        client: figures[name]
        for client, figures in clients.items()
        if client not in record.new_clients and math.isfinite(figures.get(name, math.nan))
    }
    return Measured.over_clients(known) if known else None


def _decisive(questions: Sequence[Question], models: Sequence[Model]) -> tuple[Question | None, Model | None]:
    """The first figure that the baseline and a method have in common, and the baseline: training alone, if tried."""
    for role in (Role.ALONE, Role.START):
        for question in questions:
            bases = [each for each in models if each.role is role and question.name in each.figures]
            if bases and any(each.role is Role.TOGETHER and question.name in each.figures for each in models):
                return question, bases[-1] if role is Role.START else _best_of(bases, question)
    return (questions[0] if questions else None), None


def _against(
    stage: str, questions: Sequence[Question], models: Sequence[Model]
) -> tuple[Question | None, Model | None]:
    """The first figure that this stage has in common with another; its personal models where only they have it."""
    for question in questions:
        having = [each for each in models if question.name in each.figures]
        own = [each for each in having if each.stage.name == stage]
        if own and len(having) > len(own):
            return question, _best_of(own, question)
    return (questions[0] if questions else None), None


def _second(models: Sequence[Model], best: Model | None, question: Question | None) -> Model | None:
    """The best of the others, where the best is the baseline itself."""
    if best is None or question is None:
        return None
    having = [each for each in models if question.name in each.figures and each.role is not Role.POOLED]
    others = [each for each in having if each.stage.name != best.stage.name]
    return _best_of(others, question) if others else None


def _best_of(models: Sequence[Model], question: Question) -> Model:
    return max(models, key=lambda each: each.figures[question.name].value)


def _best(models: Sequence[Model], question: Question | None) -> Model | None:
    if question is None:
        return None
    having = [each for each in models if question.name in each.figures and each.role is not Role.POOLED]
    together = [each for each in having if each.role is Role.TOGETHER]
    return _best_of(together or having, question) if having else None


def _who_won(best: Model | None, baseline: Model | None, question: Question | None, *, so_far: bool) -> tuple[str, ...]:
    if best is None or question is None:
        return ()
    at = f"of {question.heading} {question.at}"
    if baseline is None:
        found = f"{_quoted(best)} recognises {_share(best, question)} {at}"
        return (f"{found}. There is no other method to compare it with.",)
    ahead = best.figures[question.name].value >= baseline.figures[question.name].value
    first, other = (best, baseline) if ahead else (baseline, best)
    won = f"{_quoted(first)} is the best method" if ahead else f"No method is better than {_quoted(first)}"
    what = f"{won}{' so far' if so_far else ''}: it recognises {_share(first, question)} {at}"
    second = f"{_quoted(other)} recognises {_share(other, question)}"
    lead = difference(first.figures[question.name], other.figures[question.name])
    if lead.interval is None:
        return (f"{what}. {second}. These data cannot tell whether the difference is noise.",)
    if not lead.beyond_noise:
        return (f"{what}. {second}: {NOISE} ({lead.points} points, {lead.bounds}).",)
    return (
        f"{what}, {100 * lead.value:.1f} points more than {_quoted(other)} "
        f"({_share(other, question)}). This is not noise ({lead.bounds}).",
    )


def _nobody_won(run: Run, models: Sequence[Model], question: Question | None) -> tuple[str, ...]:
    """Why there is no method to speak of."""
    pooled = [each for each in models if question and question.name in each.figures]
    if question and pooled:
        best = _best_of(pooled, question)
        what = f"recognises {_share(best, question)} of {question.heading} {question.at}"
        return (f"{_quoted(best)} {what}, with all faces in one place. There is no method beside it.",)
    if any(record.clusters for record in run.records.values()):
        return ("Nobody says who is on these photographs, so no figure tells how well a model recognises people.",)
    return ("Nothing has been evaluated yet.",)


def _what_left(run: Run) -> tuple[str, ...]:
    pooled = [f"“{stage.label}”" for stage in run.stages if stage.pools_faces]
    exception = f" Only {joined(pooled)} had all faces in one place, for comparison." if pooled else ""
    if not run.sent:
        declared = [stage for stage in run.stages if stage.discloses is None or stage.discloses]
        return () if declared or not run.stages else (f"Nothing left the clients: no faces, no model.{exception}",)
    what = joined(list(dict.fromkeys(run.described(kind).short for kind, _ in run.sent.most_common())))
    return (f"The clients sent {size(run.sent.total())}: {what}. No face left them.{exception}",)


def _how_long(run: Run) -> tuple[str, ...]:
    seconds = sum(sum(record.seconds.values()) for record in run.records.values())
    if not seconds:
        return ()
    rounds = sum(len(record.seconds) for record in run.records.values())
    clients = len({client for record in run.records.values() for client in record.last_clients})
    with_clients = f" with {counted(clients, 'client')}" if clients else ""
    stages = counted(len(run.stages), "stage")
    return (f"Training took {duration(seconds)}: {counted(rounds, 'round')} in {stages}{with_clients}.",)


def _pooled(models: Sequence[Model], best: Model | None, question: Question | None) -> tuple[str, ...]:
    if best is None or question is None:
        return ()
    having = [each for each in models if each.role is Role.POOLED and question.name in each.figures]
    if not having or best.role is not Role.TOGETHER:
        return ()
    pooled = _best_of(having, question)
    ahead = difference(pooled.figures[question.name], best.figures[question.name])
    what = f"Training on all faces in one place ({_quoted(pooled)}) reaches {_share(pooled, question)}"
    if ahead.beyond_noise:
        more = "more" if ahead.value > 0 else "less"
        return (f"{what}, {abs(100 * ahead.value):.1f} points {more} than {_quoted(best)} ({ahead.bounds}).",)
    return (f"{what}: {NOISE} from {_quoted(best)} ({ahead.points} points, {ahead.bounds}).",)


def _own_models(models: Sequence[Model], questions: Sequence[Question]) -> tuple[str, ...]:
    """Whether personal models serve a client's own people better than the best shared one."""
    question = next((each for each in questions if each.name == "own"), None)
    if question is None:
        return ()
    having = [each for each in models if each.role is Role.TOGETHER and question.name in each.figures]
    personal, shared = ([each for each in having if each.personal is kind] for kind in (True, False))
    if not personal or not shared:
        return ()
    own, common = _best_of(personal, question), _best_of(shared, question)
    gain = difference(own.figures[question.name], common.figures[question.name])
    what = (
        f"With its personal model ({_quoted(own)}), a client recognises {_share(own, question)} of its own people "
        f"{question.at}. With the best shared model ({_quoted(common)}), it recognises {_share(common, question)}"
    )
    if not gain.beyond_noise:
        return (f"{what}: {NOISE} ({gain.points} points, {gain.bounds}).",)
    return (f"{what}. The difference of {gain.points} points is not noise ({gain.bounds}).",)


def _table(
    models: Sequence[Model], questions: Sequence[Question], baseline: Model | None, decisive: Question | None
) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """A column for each question, the worst client, and what was sent."""
    columns: dict[str, list[float | None]] = {
        each.heading: [model.figures[each.name].value if each.name in model.figures else None for model in models]
        for each in questions
    }
    if any(each.name == "own" for each in questions):
        columns["worst client"] = [model.figures["own"].worst if "own" in model.figures else None for model in models]
    best = {name: _best_value(_private(models, values)) for name, values in columns.items()}
    rows = []
    for at, model in enumerate(models):
        values = [column[at] for column in columns.values()]
        cells = ["–" if value is None else f"{100 * value:.1f}%" for value in values]
        sent = "all faces" if model.role is Role.POOLED else size(model.sent) if model.sent else "figures"
        marks = [
            value is not None and value == best[name] and model.role is not Role.POOLED
            for name, value in zip(columns, values, strict=True)
        ]
        rows.append(Row(model.label, model.role, (*cells, sent), (*marks, False), _gain(model, baseline, decisive)))
    return (*columns, "sent"), tuple(rows)


def _best_value(values: Sequence[float]) -> float | None:
    """None where all are alike: then nobody is best."""
    return max(values) if len(set(values)) > 1 else None


def _private(models: Sequence[Model], values: Sequence[float | None]) -> list[float]:
    """The values of models that keep faces where they are."""
    both = zip(models, values, strict=True)
    return [value for model, value in both if value is not None and model.role is not Role.POOLED]


def _gain(model: Model, baseline: Model | None, question: Question | None) -> Difference | None:
    if baseline is None or question is None or model is baseline or question.name not in model.figures:
        return None
    return difference(model.figures[question.name], baseline.figures[question.name])


def _caption(questions: Sequence[Question]) -> str:
    rates = {each.at for each in questions}
    where = {
        "new": "No model has seen new people in training.",
        "own": "Own people are those of each client, on photographs kept out of training (mean over clients).",
    }
    said = " ".join(where[each.name] for each in questions)
    if len(rates) == 1:
        return f"Share recognised {rates.pop()}. {said}"
    each_at = joined([f"{each.heading} {each.at}" for each in questions])
    return f"Share recognised: {each_at}. {said}"


def _quoted(model: Model) -> str:
    return f"“{model.label}”"


def _share(model: Model, question: Question) -> str:
    return f"{100 * model.figures[question.name].value:.1f}%"
