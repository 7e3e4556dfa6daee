# The kinds of the Prometheus operator.
set -e
. "$(dirname "$0")/kinds.sh"
define_monitoring | bring
