"""What a reader of a run's figures is to be told before trusting them."""

from personae.report.records import Run


def warnings_of(run: Run) -> list[str]:
    """Signs of trouble that were seen while it ran, stage by stage."""
    return [
        f"{stage.label}, round {number}: {text}"
        for stage in run.stages
        for number, text in run.records[stage.name].warnings
    ]
