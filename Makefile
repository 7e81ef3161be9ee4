# qnetops: what there is to run. `make test` is what CI runs, less strict about missing programs.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
FUZZTIME ?= 30s

.PHONY: build test test-long bench lint fuzz clean

# One static binary: it is copied to hosts as it is, whatever C library they have.
build:
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION)" -o bin/qnetops ./cmd/qnetops

# Everything that must hold, in minutes.
test:
	bash scripts/test.sh

# The full matrices on real hosts (Linux, root), in hours.
test-long:
	QNETOPS_LONG=1 go test -race -tags long -count=1 -p 1 -timeout 6h ./...

bench:
	go test -run '^$$' -bench . -benchmem -count=1 ./...

lint:
	@bad=$$(find . -name '*.go' -not -path './.*' -exec gofmt -l {} +); test -z "$$bad" || { echo "not formatted: $$bad"; exit 1; }
	go vet ./...
	go vet -tags long ./...
	go tool staticcheck ./...

# Every fuzz target for FUZZTIME.
fuzz:
	@grep -rEo --include='*_test.go' --exclude-dir=testdata '^func Fuzz[A-Za-z0-9_]+' . | sed -E 's/:func /:/' | sort | \
	while IFS=: read -r file name; do \
		echo "$$name in $$(dirname $$file)"; \
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$(dirname $$file)" || exit 1; \
	done

clean:
	rm -rf bin
