# Two commands do everything on a fresh machine: `make demo` and `make test`.

SHELL := /bin/bash
GO    ?= go

.PHONY: demo demo-azure demo-regions test test-all quick build image generate bench check vuln clean

demo: ## install what is missing, build, start a region, make a cluster and a deployment in it
	@scripts/demo.sh

demo-azure: ## a region for Azure's SDKs, and a program of the SDK for Go that uses it
	@scripts/demo-azure.sh

demo-regions: ## regions from Git: two, a third that a commit adds, and each goes on without the others
	@scripts/demo-regions.sh

test: ## what CI runs: unit, race, integration, end to end
	@scripts/test.sh

test-all: ## the slow tests, too, and all services with the race detector: more than an hour on two cores
	@ATOLL_SLOW=1 ATOLL_SOAK=$${ATOLL_SOAK:-1m} scripts/test.sh

quick: check ## every test that needs no server, without the race detector: the loop of the day
	@$(GO) test -short -vet=off ./... # check vets

build: bin/atoll-kube bin/atoll ## bin/atoll, bin/atoll-kube, bin/kubectl

.PHONY: bin/atoll bin/atoll-kube
bin/atoll: ## Go's build cache decides what to compile
	@$(GO) build -trimpath -o bin/atoll ./cmd/atoll

bin/atoll-kube: ## built anew only when kube/ changed: upstream Kubernetes takes minutes
	@kube/build.sh

.PHONY: nodes
nodes: ## bin/atoll-node, bin/node, bin/demo-image.tar: what real nodes run; the first time takes minutes
	@node/programs/build.sh

.PHONY: test-nodes
test-nodes: nodes build ## real nodes and pods on this machine, as root; make test runs the short ones
	@ATOLL_KUBE_BIN=$(CURDIR)/bin/atoll-kube $(GO) test -trimpath -tags realnodes -count=1 ./node/supervisor ./test/realnodes

.PHONY: test-versions
test-versions: bin/atoll-kube ## upgrades and rollbacks between two versions of Kubernetes; builds the second: minutes
	@kube/previous.sh
	@ATOLL_KUBE_BIN=$(CURDIR)/bin/atoll-kube ATOLL_KUBE_PREVIOUS_BIN=$(CURDIR)/bin/previous/atoll-kube \
		$(GO) test -trimpath -tags versions -count=1 -run TwoVersions ./hosting

image: ## the container images as OCI layouts in bin/image; deploy/charts/README.md says how to push them
	@scripts/image.sh

generate: ## types from the OpenAPI and protobuf contracts
	$(GO) generate ./...

bench: build ## the figures of bench/README.md, as JSON lines
	@scripts/bench.sh

check: ## what CI checks before the tests
	@test -z "$$(git ls-files '*.go' | xargs gofmt -l)" || { echo 'not gofmt-ed:'; git ls-files '*.go' | xargs gofmt -l; exit 1; }
	@$(GO) vet $(VETFLAGS) ./...
	@# tests that this suite does not run must at least compile
	@git grep -lE '^//go:build (realnodes|versions)' -- '*.go' | xargs -n1 dirname | sort -u | sed 's|^|./|' | \
		xargs $(GO) vet $(VETFLAGS) -tags realnodes,versions

vuln: ## known vulnerabilities in what the binaries call; needs the vulnerability database
	@scripts/vuln.sh

clean:
	rm -rf bin
