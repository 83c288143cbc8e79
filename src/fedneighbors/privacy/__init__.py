"""Privacy: what a release costs, who pays, the noise itself, masked sums, audits of it all."""
