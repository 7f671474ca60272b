# Background processes, by name: logs in $D/log/NAME, pids in $D/pid/NAME.
#
# A process is identified by its pid and its start time, so that a reused pid is never signalled. A zombie counts as
# ended only when its last thread has ended (field 18 is the number of threads), because its ports are in use until then.

start_time() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | awk '$1 != "Z" || $18 > 1 { print $20 }'; }

# start NAME COMMAND...
start() {
  local name=$1; shift
  mkdir -p "$D/log" "$D/pid"
  setsid "$@" </dev/null >>"$D/log/$name" 2>&1 &
  echo "$! $(start_time $!)" >"$D/pid/$name"
  disown
}

alive() { local pid started; read -r pid started 2>/dev/null <"$D/pid/$1" && [[ $(start_time "$pid") == "$started" ]]; }

pid_of() { cut -d' ' -f1 "$D/pid/$1"; }

# stop NAME [SIGNAL]: sends the signal, waits up to 10 s, then sends SIGKILL.
stop() {
  local name=$1 signal=${2:-TERM}
  if alive "$name"; then
    kill -s "$signal" "$(pid_of "$name")" 2>/dev/null || true
    until_ok 10 has_ended "$name" || kill -9 "$(pid_of "$name")" 2>/dev/null || true
  fi
  rm -f "$D/pid/$name"
}
has_ended() { ! alive "$1"; }

# until_ok SECONDS COMMAND...: repeats the command every 0.1 s until it succeeds.
until_ok() {
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do ((SECONDS < end)) || return 1; sleep 0.1; done
}

# Prints a free port below the range of outgoing connections, which could take the port while its server restarts.
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
