// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// deferred names tests that take minutes or need large programs: `make test`
// leaves them to `make verify`.
type deferred struct {
	pkg   string // folder
	tests string // names of tests, separated by spaces; empty means the whole package
	why   string
	alone bool // they measure a load of connections: verify runs nothing beside them
	soak  bool // verify leaves them to `make soak`, which must name them
}

// single returns the names of the tests that are deferred without their packages.
func single(later []deferred) (tests []string) {
	for _, d := range later {
		tests = append(tests, strings.Fields(d.tests)...)
	}
	return tests
}

func (d deferred) name() string { return strings.TrimSpace(d.pkg + " " + d.tests) }

func later() []deferred {
	return []deferred{
		{pkg: "ci/kubernetes", why: "needs kube-apiserver and etcd built from source (4 min), then 5 min"},
		{pkg: "ci/kubernetes/cluster", why: "the same"},
		{pkg: "ci/wine", why: "the Windows program under Wine: 9 min"},
		{
			pkg: "ci/netns", tests: "TestSwitchModes TestUserspaceWithoutIPTables TestIPTablesUnderFire TestSwitchCutShort TestInvalidSegment TestUserspaceRestartUnderLoad",
			why: "switches and faults under load: 1 min", alone: true,
		},
		{
			pkg: "ci/netns", tests: "TestFailoverInEveryMode TestFailoverIsNotFooled TestHandshakesMoveOn TestFailoverObserves TestAsymmetricRouting TestTooManySilentNodes TestFailoverAcrossRestart TestKubeProxyLosesConnections",
			why: "dead nodes and what looks like them, under load: 4 min", alone: true,
		},
		{
			pkg: "ci/netns", tests: "TestHostileNamespace",
			why: "another namespace attacks failover in each mode (ipvs: ci/guest/matrix), under load: 3 min", alone: true,
		},
		{
			pkg: "ci/netns", tests: "TestHostileClaims TestHostileAffinity TestHostileChanges",
			why: "another namespace claims a victim's addresses, forges clients and writes thousands of objects, under load (ipvs: ci/guest/run, ci/guest/matrix, ci/test/soak): 3 min", alone: true,
		},
		{
			pkg: "ci/netns", tests: "TestConnectivityOfTheRunningProxy TestDisruptRestartAndSwitch TestDisruptUpgrade TestTraceLive",
			why: "restarts and switches of each mode under load, real packets followed: 3 min", alone: true,
		},
		{
			pkg: "ci/netns", tests: "TestKubeProxyThereAndBack TestUpgradeAndDowngrade TestUpgradeOfACrowd",
			why: "kube-proxy and earlier programs, built once, there and back under load: 4 min", soak: true,
		},
		{pkg: "ci/netns", tests: "TestSharesInEveryMode TestConnectivityInEveryMode", why: "10,000 connections and all kinds of frontends in each mode: 30 s"},
		{
			pkg: "ci/guest", tests: "TestForcedEngines TestChosenEngine TestUMLOnCPUWithoutAMX TestStoppedGuest TestSkippedWithReason",
			why: "kernels that boot without KVM: 2 min",
		},
		{pkg: "cmd/tandem", tests: "TestMemoryOfAFullHistory", why: "10,000 changes, one after the other: 90 s, most of it waiting"},
		{pkg: "core/ui", tests: "TestAxe", why: "axe judges each page in Chromium, in all sizes and themes: 1 min"},
		{pkg: "ci/simulate", tests: "TestEachCrashPoint", why: "a proxy killed at each single write, in virtual time: 1 min"},
		{pkg: "platform", tests: "TestBackendIsOneFolderAndOneLine", why: "builds the program with another backend: 20 s of processor time"},
		{pkg: "installers/packages", why: "packages on a Debian machine with systemd: 1 min"},
		{pkg: "installers/systemd", why: "the unit on a Debian machine with systemd: 1 min"},
	}
}

// split returns the packages of all in which no test is deferred as a whole, as
// arguments of `go test`, and a pattern of the single tests that are. What is
// deferred must exist, and only there: a test that was renamed, or has a namesake,
// would otherwise run nowhere.
func split(all []string, later []deferred, declared map[string][]string) (now []string, skip string, err error) {
	rest := slices.Clone(all)
	for _, d := range later {
		i := slices.Index(rest, d.pkg)
		if i < 0 {
			return nil, "", fmt.Errorf("ci/test/later.go: there is no package %s with tests", d.pkg)
		}
		if d.tests == "" {
			rest = slices.Delete(rest, i, i+1)
		}
		for _, test := range strings.Fields(d.tests) {
			if at := declared[test]; !slices.Equal(at, []string{d.pkg}) {
				return nil, "", fmt.Errorf("ci/test/later.go: %s is not a test of %s alone but of %q", test, d.pkg, at)
			}
		}
	}
	for _, pkg := range rest {
		now = append(now, "./"+pkg)
	}
	return now, pattern(single(later)), nil
}

// pattern matches tests by their names, for -run and -skip.
func pattern(names []string) string { return "^(" + strings.Join(names, "|") + ")$" }

// declarations returns the folders below root in which each test is declared.
func declarations(root fs.FS) (map[string][]string, error) {
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	all := map[string][]string{}
	err := fs.WalkDir(root, ".", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(root, file)
		for _, found := range declaration.FindAllSubmatch(text, -1) {
			if name := string(found[1]); !slices.Contains(all[name], path.Dir(file)) {
				all[name] = append(all[name], path.Dir(file))
			}
		}
		return err
	})
	return all, err
}
