#!/usr/bin/env bash
# Runs everything that must hold: vet, staticcheck, every fuzz target for a moment, and all tests under the race detector.
# On a person's machine it says what it leaves out; with CI=true it leaves out nothing and fails instead.
#
#   FUZZTIME=3s       length of each fuzz target, 0 for none
#   PACKAGES=./...    what to test
set -uo pipefail
exec </dev/null
cd "$(dirname "$0")/.." || exit 1

[ -n "${HOME:-}" ] || { HOME=$(getent passwd "$(id -u)" | cut -d: -f6); export HOME; } # Go's caches live there

PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" # system programs are often not in a person's path
ci=${CI:-false}
packages=${PACKAGES:-./...}
fuzztime=${FUZZTIME:-3s}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0

say() { printf '== %s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; failed=1; }

have() { command -v "$1" >/dev/null 2>&1; }
have_initdb() { have initdb || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; }

# missing prints the Debian packages whose programs are not there.
missing() {
  have sshd || echo openssh-server
  have dockerd || echo docker.io
  have_initdb || echo postgresql
  have ip || echo iproute2
  have iptables || echo iptables
  have pgbouncer || echo pgbouncer
  compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null || echo libfaketime
  have git || echo git
  have patch || echo patch
  have rustc || echo rustc # compares what the manifest's reader and the compiler make of one file
  have gcc || echo gcc libc6-dev # the race detector is linked by the C tool chain
}

install_missing() {
  local want
  want=$(missing) want=${want//$'\n'/ }
  [ -n "$want" ] || return 0
  if [ "$(id -u)" = 0 ] && have apt-get; then
    say "installing: $want"
    # RUNLEVEL=1 keeps the packages from starting their services: the tests run servers of their own.
    # shellcheck disable=SC2086 # a list of names
    { apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $want; } >"$work/apt" 2>&1 ||
      { cat "$work/apt"; say "the installation did not succeed"; }
  fi
  want=$(missing) want=${want//$'\n'/ }
  [ -n "$want" ] || return 0
  if [ "$ci" = true ]; then
    fail "these Debian packages are missing, and with CI=true nothing is left out: $want"
    exit 1
  fi
  say "left out: the tests that need $want (apt-get install $want)"
}

lint() {
  say "gofmt, go vet, staticcheck"
  local unformatted
  unformatted=$(find . -name '*.go' -not -path './.*' -exec gofmt -l {} +)
  [ -z "$unformatted" ] || fail "not formatted (gofmt -w): ${unformatted//$'\n'/ }"
  go vet ./... || fail "go vet found faults"
  go vet -tags long ./... || fail "go vet found faults in the long tests"
  go tool staticcheck ./... || fail "staticcheck found faults"
}

# fuzz finds the fuzz targets by their names and runs each for a moment.
fuzz() {
  [ "$fuzztime" != 0 ] || return 0
  local file name
  while IFS=: read -r file name; do
    say "fuzz $name in $(dirname "$file") for $fuzztime"
    go test -run='^$' -fuzz="^$name\$" -fuzztime="$fuzztime" -fuzzminimizetime=2s "./$(dirname "$file")" >"$work/fuzz" 2>&1 ||
      { cat "$work/fuzz"; fail "fuzzing $name in $(dirname "$file") found a fault"; }
  done < <(grep -rEo --include='*_test.go' --exclude-dir=testdata '^func Fuzz[A-Za-z0-9_]+' . | sed -E 's#^\./##; s/:func /:/' | sort)
}

# run_tests runs the given packages. The screen gets Go's summary lines, what was skipped and why, and all of the output
# of a run that failed.
run_tests() {
  local log flags=()
  log=$(mktemp -p "$work")
  [ "$ci" != true ] || flags+=(-count=1)
  go test -v -timeout 30m "${flags[@]}" "$@" 2>&1 | tee "$log" | grep --line-buffered -E '^(ok|FAIL|\?|panic:|#)|^ *--- (FAIL|SKIP)|left out:'
  if [ "${PIPESTATUS[0]}" != 0 ]; then
    if grep -qE 'ThreadSanitizer: CHECK failed|^SIGSEGV: segmentation violation' "$log" && ! grep -q 'WARNING: DATA RACE' "$log" && [[ " $* " == *" -race "* ]]; then
      # Detector and simulated time together bring the runtime itself down now and then, inside its timers or the detector;
      # that is no finding. What it did not finish runs without it.
      local again=()
      mapfile -t again < <(sed -nE 's/^FAIL[[:space:]]+(github[^[:space:]]+).*/\1/p' "$log" | sort -u)
      say "the race detector gave up; without it: ${again[*]}"
      run_tests "${again[@]}"
      return
    fi
    say "output of the run that failed"
    grep -vE '^=== |^ *--- PASS|^PASS$' "$log"
    fail "tests failed"
  fi
  if [ "$ci" = true ] && grep -qE '^ *--- SKIP' "$log"; then
    fail "tests were skipped, and with CI=true nothing is left out"
  fi
}

# heavy are packages whose tests run whole fleets for minutes: under the race detector they take ten times as long and the
# detector gives up. They run without it, and their small tests with it.
heavy='/(host|fleet|lab|lab/ledger|rolling|cutover|cmd/qnetops)$'
# timed are packages whose tests hold upper bounds of time.
timed='/lease(/run)?$'
small='^(TestReentryOf|TestM[0-4]|TestRecoveryHaltedSkipsOnly|TestDeadlines|TestResumeDoesNot|TestPlan|TestInvariant9|TestPreflight|TestStageIs|TestStepsInDoubt|TestResolveRef|TestParse|TestTrap|TestDecide|TestFence|TestTakeOver|TestCompare|TestLoad|TestJudge|TestStopOf|TestSpread|TestLaterRun|TestCheckHeight|TestSurvivors|TestRetire|TestRestartLines|TestFlags|TestUsage|TestExit|TestDocumented|TestGates|TestManifest)'

tests() {
  say "go test"
  # Packages that build real hosts own network namespaces and engines: they take turns. They mostly wait, so all others, which
  # only compute, run beside them with less priority, and are shown when they have ended. The tests of the lease ask for upper bounds of time that
  # anything beside them would spoil: they run alone, at the end.
  local all=() slow=() turns=() alone=() line race=(-race)
  have gcc || { say "left out: the race detector (needs gcc)"; race=(); }
  while read -r line; do
    case $line in
      *"/lab/realhosts "* | *"/lab/realhosts]"*) turns+=("${line%% *}") ;;
      *) if [[ ${line%% *} =~ $timed ]]; then alone+=("${line%% *}"); continue; fi
        [[ ${line%% *} =~ $heavy ]] && slow+=("${line%% *}") || all+=("${line%% *}") ;;
    esac
  # shellcheck disable=SC2086 # a list of patterns
  done < <(go list -f '{{.ImportPath}} {{.Imports}} {{.TestImports}} {{.XTestImports}}' $packages)
  local beside pkg
  (
    failed=0
    renice -n 10 "$BASHPID" >/dev/null 2>&1
    [ ${#all[@]} = 0 ] || run_tests "${race[@]}" "${all[@]}"
    [ ${#slow[@]} = 0 ] || run_tests "${race[@]}" -run "$small" "${slow[@]}"
    [ ${#slow[@]} = 0 ] || run_tests "${slow[@]}"
    exit "$failed"
  ) >"$work/beside" 2>&1 &
  beside=$!
  for pkg in "${turns[@]}"; do
    if [[ $pkg =~ $heavy ]]; then
      run_tests "${race[@]}" -run "$small" "$pkg"
      run_tests "$pkg"
    else
      run_tests "${race[@]}" "$pkg"
    fi
  done
  wait "$beside" || failed=1
  cat "$work/beside"
  for pkg in "${alone[@]}"; do run_tests "${race[@]}" "$pkg"; done
}

install_missing
lint
fuzz
tests
exit $failed
