# Processes in the background, by name: logs in $D/log/NAME, pids in $D/pid/NAME.
#
# A process is its pid and its start time, so that a pid which the kernel has given to somebody else since is
# never signalled. A zombie counts as ended once its last thread has: a killed process whose first thread is a zombie
# already holds its ports until the others are gone, tens of milliseconds later (field 18 counts them).

born() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | awk '$1 != "Z" || $18 > 1 { print $20 }'; }

# start NAME COMMAND...
start() {
  local name=$1; shift
  mkdir -p "$D/log" "$D/pid"
  setsid "$@" </dev/null >>"$D/log/$name" 2>&1 &
  echo "$! $(born $!)" >"$D/pid/$name"
  disown
}

alive() { local pid birth; read -r pid birth 2>/dev/null <"$D/pid/$1" && [[ $(born "$pid") == "$birth" ]]; }

pid_of() { cut -d' ' -f1 "$D/pid/$1"; }

# stop NAME [SIGNAL]: signal, up to 10 s of patience, then SIGKILL.
stop() {
  local name=$1 signal=${2:-TERM}
  if alive "$name"; then
    kill -s "$signal" "$(pid_of "$name")" 2>/dev/null || true
    until_ok 10 gone "$name" || kill -9 "$(pid_of "$name")" 2>/dev/null || true
  fi
  rm -f "$D/pid/$name"
}
gone() { ! alive "$1"; }

# until_ok SECONDS COMMAND...: tried ten times a second.
until_ok() {
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do ((SECONDS < end)) || return 1; sleep 0.1; done
}

# Below the ports that the kernel gives to outgoing connections: one of those could take it while its server restarts.
free_port() {
  python3 - <<'PYTHON'
import random, socket

for port in random.sample(range(20000, 32768), 100):
    with socket.socket() as candidate:
        try:
            candidate.bind(("127.0.0.1", port))
        except OSError:
            continue
    print(port)
    break
PYTHON
}
