# Sourced by ./demo and ./test: `prepare_venv EXTRA` makes .venv hold this checkout and what it needs.
# It installs again only when pyproject.toml or the interpreter has changed.

find_python() {
    local name
    for name in python3 python3.13 python3.12 python3.11; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    echo "$0: Python 3.11 or newer is needed" >&2
    return 1
}

make_venv() {
    local python=$1
    "$python" -m venv --clear .venv >/dev/null 2>&1 && return
    # Debian splits ensurepip off; everything else comes with python3.
    echo "$0: installing python3-venv" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends python3-venv >/dev/null
    "$python" -m venv --clear .venv
}

prepare_venv() {
    local extra=$1 python key stamp
    python=$(find_python)
    # Two runs at once would install into each other's half-made environment.
    exec 9<pyproject.toml
    flock 9
    key=$({ cat pyproject.toml tests/lab/venv.sh; "$python" -V; } | sha256sum)
    stamp=".venv/installed${extra}"
    if [[ ! -x .venv/bin/python || "$(cat "$stamp" 2>/dev/null)" != "$key" ]]; then
        [[ -x .venv/bin/python ]] && .venv/bin/python -c '' 2>/dev/null || make_venv "$python"
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${extra}"
        echo "$key" >"$stamp"
    fi
    exec 9<&-
}
