"""The command `personae`: it listens for Ctrl-C before it imports everything, which takes seconds."""

from personae.interrupts import begin_work, ends, leave, listen, stop_listening


def main() -> None:
    listen()
    from personae import cli

    begin_work()
    try:
        cli.main()
    except KeyboardInterrupt:  # it came while another end was being prepared
        leave()
    except SystemExit as stop:
        ends(stop)
        raise
    finally:
        stop_listening()


if __name__ == "__main__":
    main()
