"""What clients see of each other where a round asks few of them."""


def seen_of_few(cohort: int) -> str | None:
    """After a round of so many; None where it takes more of them together to see anything of a single one."""
    if cohort == 1:
        return "in a round of one client, the next client receives the model of this one as it is"
    if cohort == 2:
        return (
            "in a round of two clients, each can work out the other's update; if only one of them answers, the next "
            "client may receive its model as it is"
        )
    return None
