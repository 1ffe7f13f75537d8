// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

const stream = `{"Action":"start","Package":"github.com/tandem-proxy/tandem/core/a"}
{"Action":"run","Package":"github.com/tandem-proxy/tandem/core/a","Test":"TestGood"}
{"Action":"output","Package":"github.com/tandem-proxy/tandem/core/a","Test":"TestGood","Output":"    a_test.go:3: corpus: nftables: 12 scenarios\n"}
{"Action":"output","Package":"github.com/tandem-proxy/tandem/core/a","Test":"TestGood","Output":"winkernel: 7 of 9 alike\n"}
{"Action":"pass","Package":"github.com/tandem-proxy/tandem/core/a","Test":"TestGood","Elapsed":0.1}
{"Action":"run","Package":"github.com/tandem-proxy/tandem/core/a","Test":"TestBad"}
{"Action":"run","Package":"github.com/tandem-proxy/tandem/core/a","Test":"TestBad/part"}
{"Action":"output","Package":"github.com/tandem-proxy/tandem/core/a","Test":"TestBad/part","Output":"    a_test.go:9: 2 is not 3\n"}
{"Action":"fail","Package":"github.com/tandem-proxy/tandem/core/a","Test":"TestBad/part","Elapsed":0.1}
{"Action":"fail","Package":"github.com/tandem-proxy/tandem/core/a","Test":"TestBad","Elapsed":0.2}
{"Action":"run","Package":"github.com/tandem-proxy/tandem/core/a","Test":"TestElsewhere"}
{"Action":"output","Package":"github.com/tandem-proxy/tandem/core/a","Test":"TestElsewhere","Output":"    a_test.go:12: this kernel has no IPVS\n"}
{"Action":"output","Package":"github.com/tandem-proxy/tandem/core/a","Test":"TestElsewhere","Output":"--- SKIP: TestElsewhere (0.00s)\n"}
{"Action":"skip","Package":"github.com/tandem-proxy/tandem/core/a","Test":"TestElsewhere","Elapsed":0}
{"Action":"fail","Package":"github.com/tandem-proxy/tandem/core/a","Elapsed":0.5}
{"Action":"build-output","ImportPath":"github.com/tandem-proxy/tandem/core/b [github.com/tandem-proxy/tandem/core/b.test]","Output":"core/b/b_test.go:1: undefined: x\n"}
{"Action":"build-fail","ImportPath":"github.com/tandem-proxy/tandem/core/b [github.com/tandem-proxy/tandem/core/b.test]"}
{"Action":"start","Package":"github.com/tandem-proxy/tandem/core/b"}
{"Action":"fail","Package":"github.com/tandem-proxy/tandem/core/b","Elapsed":0,"FailedBuild":"github.com/tandem-proxy/tandem/core/b [github.com/tandem-proxy/tandem/core/b.test]"}
{"Action":"start","Package":"github.com/tandem-proxy/tandem/core/c"}
{"Action":"skip","Package":"github.com/tandem-proxy/tandem/core/c","Elapsed":0}
{"Action":"start","Package":"github.com/tandem-proxy/tandem/core/d"}
{"Action":"output","Package":"github.com/tandem-proxy/tandem/core/d","Output":"ok  \tgithub.com/tandem-proxy/tandem/core/d\t(cached)\n"}
{"Action":"pass","Package":"github.com/tandem-proxy/tandem/core/d","Elapsed":0}
{"Action":"run","Package":"github.com/tandem-proxy/tandem/core/e","Test":"TestHangs"}
{"Action":"output","Package":"github.com/tandem-proxy/tandem/core/e","Test":"TestHangs","Output":"panic: test timed out after 20m0s\n"}
{"Action":"fail","Package":"github.com/tandem-proxy/tandem/core/e","Elapsed":1200}
go: something that is no event
`

func TestSummary(t *testing.T) {
	var out strings.Builder
	r := newRunner(&out)
	if err := r.tests.read(strings.NewReader(stream), r); err != nil {
		t.Fatal(err)
	}
	r.failed = []string{"tests"}
	if r.summary() {
		t.Error("all is well")
	}
	for _, want := range []string{
		"FAIL  core/a                           4 tests     0.5 s\n  FAIL TestBad/part\n        a_test.go:9: 2 is not 3\n",
		"FAIL  core/b                           0 tests     0.0 s\n",
		"ok    core/d                           0 tests     0.0 s  as before\n",
		"go: something that is no event\n",
		"\nFAIL core/a TestBad/part\n        a_test.go:9: 2 is not 3\n",
		"\nFAIL core/b \n    core/b/b_test.go:1: undefined: x\n",
		"skipped 1, such as core/a TestElsewhere: this kernel has no IPVS\n",
		"core/a: nftables: 12 scenarios\n",
		"winkernel: 7 of 9 alike\n",
		"\nFAIL core/e TestHangs\n    panic: test timed out after 20m0s\n",
		"\n4 packages, 1 tests passed, 6 failed, 1 skipped, in ",
		"FAILED: tests\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}

// A step that fails must fail the whole, and its reason be seen.
func TestFailedStep(t *testing.T) {
	var out strings.Builder
	r := newRunner(&out)
	r.step(t.Context(), "good", "true")
	r.step(t.Context(), "bad", "sh", "-c", "echo oh; exit 3")
	r.goTest(t.Context(), "nothing", "testdata-that-is-not-there", "./...")
	if r.summary() || !strings.Contains(out.String(), "oh\nFAIL  bad: exit status 3") || !strings.Contains(out.String(), "FAILED: bad, nothing\n") {
		t.Error(out.String())
	}
}

// A lane has half of the jobs, and all of them once the other one has ended.
func TestLanesShareTheJobs(t *testing.T) {
	r := newRunner(io.Discard)
	r.setjobs(6)
	ended := make(chan struct{})
	step := func(lane *runner) (jobs int) {
		lane.during("step", func() string { return "" }, func() error {
			jobs = lane.jobs
			return nil
		})
		return jobs
	}
	var short, long, alone int
	r.both(func(lane *runner) {
		defer close(ended)
		short = step(lane)
	}, func(lane *runner) {
		long = step(lane)
		<-ended
		for end := time.Now().Add(10 * time.Second); lane.lanes.Load() > 1 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		alone = step(lane)
	})
	if short != 3 || long != 3 || alone != 6 || r.jobs != 6 {
		t.Errorf("%d and %d jobs, then %d, and %d afterwards; want 3 and 3, then 6", short, long, alone, r.jobs)
	}
}

func TestSplit(t *testing.T) {
	declared, err := declarations(fstest.MapFS{
		"ci/netns/a_test.go": {Data: []byte("package a\n\nfunc TestSlow(t *testing.T) {}\n\nfunc TestTwice(t *testing.T) {}\n")},
		"core/a/a_test.go":   {Data: []byte("package a\n\nfunc TestTwice(t *testing.T) {}\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	all := []string{"ci/netns", "ci/wine", "core/a"}
	now, skip, err := split(all, []deferred{{pkg: "ci/wine"}, {pkg: "ci/netns", tests: "TestSlow"}}, declared)
	if err != nil || strings.Join(now, " ") != "./ci/netns ./core/a" || skip != "^(TestSlow)$" {
		t.Error(now, skip, err)
	}
	for _, wrong := range []deferred{{pkg: "ci/gone"}, {pkg: "ci/netns", tests: "TestGone"}, {pkg: "ci/netns", tests: "TestTwice"}} {
		if _, _, err := split(all, []deferred{wrong}, declared); err == nil {
			t.Errorf("%+v was not noticed", wrong)
		}
	}
}

// What later.go names is there, and nowhere else.
func TestLater(t *testing.T) {
	t.Chdir("../..")
	r := newRunner(io.Discard)
	all, err := r.packages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	declared, err := declarations(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := split(all, later(), declared); err != nil {
		t.Error(err)
	}
	soak, err := os.ReadFile("ci/test/soak")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range later() {
		for _, test := range strings.Fields(l.tests) {
			if l.soak && !strings.Contains(string(soak), test) {
				t.Errorf("ci/test/soak does not run %s", test)
			}
		}
	}
}
