"""Follows the X.509 contexts of a Workload API with py-spiffe and prints one JSON line per update. usage: watch.py SOCKET"""

import json
import sys
import threading

from spiffe import WorkloadApiClient


def emit(identities, bundles=0, error=""):
    print(json.dumps({"identities": identities, "bundles": bundles, "error": error}), flush=True)


def update(context):
    identities = [
        {
            "id": str(svid.spiffe_id),
            "serial": f"{svid.leaf.serial_number:x}",
            "not_after": int(svid.leaf.not_valid_after_utc.timestamp()),
        }
        for svid in context.x509_svids
    ]
    emit(identities, len(context.x509_bundle_set.bundles))


def main():
    client = WorkloadApiClient(f"unix:{sys.argv[1]}")
    ended = threading.Event()

    def failed(error):
        emit([], error=str(error))
        ended.set()

    client.stream_x509_contexts(update, failed)
    ended.wait()
    sys.exit(1)


main()
