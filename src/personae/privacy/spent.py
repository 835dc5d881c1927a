"""What a run has spent of privacy, as its records say it: for readers, who compute nothing."""

from collections.abc import Iterable

from personae.core.events import Event, PrivacySpent


def spent(events: Iterable[Event]) -> list[PrivacySpent]:
    """What a run has spent, as its records say it: the last word on each unit and observer.

    An empty list stands for **none**: no layer of the run adds noise, and nothing bounds what models say of a client.
    """
    latest = {(event.unit, event.against): event for event in events if isinstance(event, PrivacySpent)}
    return list(latest.values())


def in_words(spent: PrivacySpent) -> str:
    """One sentence for people."""
    from_whom = {
        "readers": "from whoever gets the models, as long as the server is trusted",
        "server": "from the server, too",
    }[spent.against]
    if spent.noises:
        from_whom += f", as long as {spent.noises} clients of every sum keep their own noise to themselves"
    elif spent.drawn:
        from_whom += " and nobody knows who took part"
    sentence = f"epsilon {spent.epsilon:.3g} at delta {spent.delta:g} for each {spent.unit}, {from_whom}"
    if spent.uncovered:
        sentence += f"; none for {', '.join(spent.uncovered)}"
    return sentence if spent.secret else f"{sentence}; a simulation, whose noise follows from the seed"
