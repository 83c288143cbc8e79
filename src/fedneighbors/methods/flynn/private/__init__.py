"""FlyNN under a privacy budget: releases, the private party and the coordinator."""
