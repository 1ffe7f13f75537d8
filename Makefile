# Every target is one line; all but demo and clean call go or a script under ci/.

.PHONY: build dist release demo cluster cluster-down e2e test verify simulate soak race guest matrix wine fuzz bench bench-kubernetes bench-ipvs bench-failover lint golden manual clean

build: ; version=$$(ci/dist/version) && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$$version" -o bin/ ./cmd/tandem
dist: ; ci/setup/run && ci/dist/run
release: ; ci/setup/run && ci/dist/release
demo: build ; bin/tandem demo
cluster: ; ci/setup/run && ci/cluster/run $(CLUSTER) up
cluster-down: ; ci/cluster/run down
e2e: ; ci/setup/run && ci/cluster/run $(E2E) e2e && ci/cluster/run table
test: ; go run ./ci/test
wine: ; ci/setup/run && go test -count=1 -v -timeout 30m ./ci/wine
race: ; ci/setup/run && go test -race ./...
guest: ; ci/setup/run && ci/guest/run
matrix: ; ci/setup/run && ci/guest/matrix
verify: ; go run ./ci/test -verify
simulate: ; go test -count=1 -v ./ci/simulate -run TestSimulation -first $$(date +%s) $(if $(SIMULATE),-timeout 0 $(SIMULATE),-timeout 20m -for 9m)
soak: ; ci/setup/run && ci/test/soak && ci/guest/matrix
fuzz: ; ci/test/fuzz
bench: bench-kubernetes ; ci/setup/run && for b in nftables manifests round iptables-legacy iptables-nft relay; do ci/bench/run $$b $(BENCHFLAGS) || exit; done
bench-kubernetes: ; ci/setup/run && ci/bench/run kubernetes $(if $(BENCHFLAGS),,-against ci/bench/figures/kubernetes.json) $(BENCHFLAGS)
bench-ipvs: ; ci/setup/run && ci/bench/run ipvs $(BENCHFLAGS)
bench-failover: ; ci/setup/run && ci/bench/run failover
lint: ; ci/lint/run
golden: ; go test -p 1 ./linux/nftables ./linux/iptables ./linux/ipvs ./linux/userspace ./windows/hns -run Corpus -update
manual: ; go test ./cmd/tandem -run 'TestReferences|TestExplainGolden' -update
clean: ; rm -rf bin dist
