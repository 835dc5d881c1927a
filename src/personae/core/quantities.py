"""What the firewall compares among the updates of a round. A kind of payload may measure something else, too."""

UPDATE, GRADIENT, SAMPLES, ROWS = "update", "gradient", "number of samples", "longest class embedding"
STATISTICS = "change of BatchNorm's statistics"
