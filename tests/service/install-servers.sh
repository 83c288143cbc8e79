#!/bin/sh
# Install PostgreSQL 15 with PostGIS and RDKit, libfaketime and Chromium, from Debian's packages,
# unless they are installed.
# Tests start clusters of their own: no cluster is made for the machine, and none is started.
set -eu

PACKAGES="postgresql-15 postgresql-15-postgis-3 postgresql-15-rdkit libfaketime chromium chromium-driver"
EXTENSIONS=/usr/share/postgresql/15/extension
if [ -x /usr/lib/postgresql/15/bin/postgres ] && [ -f $EXTENSIONS/postgis.control ] \
  && [ -f $EXTENSIONS/rdkit.control ] && ls /usr/lib/*/faketime > /dev/null 2>&1 \
  && command -v chromium > /dev/null && command -v chromedriver > /dev/null; then
  exit 0
fi
AS_ROOT=
if [ "$(id -u)" != 0 ]; then AS_ROOT="sudo -n"; fi
if ! command -v apt-get > /dev/null || ! $AS_ROOT true 2> /dev/null; then
  echo "tests of databases and of the console need these packages of Debian 12, and root to install them: $PACKAGES" >&2
  echo "install them, or skip these tests: run pytest without CI in the environment" >&2
  exit 1
fi
install() {
  $AS_ROOT env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
    -o DPkg::Lock::Timeout=120 "$@" > /dev/null
}
$AS_ROOT apt-get update -qq
if [ ! -d /etc/postgresql ]; then
  install postgresql-common
  $AS_ROOT sed -i 's/^#*create_main_cluster.*/create_main_cluster = false/' \
    /etc/postgresql-common/createcluster.conf
fi
# shellcheck disable=SC2086 # several packages
install $PACKAGES
