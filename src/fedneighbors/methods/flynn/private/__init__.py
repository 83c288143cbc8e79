"""FlyNN under a privacy budget: releases, the party with a ledger, the coordinator."""
