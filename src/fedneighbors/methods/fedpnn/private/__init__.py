"""FedPNN under a privacy budget: releases, the party that pays for them, the coordinator."""
