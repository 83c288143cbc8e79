"""FedPNN under a privacy budget: releases, party, coordinator and model."""
