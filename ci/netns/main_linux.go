// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// Main is for the TestMain of packages whose tests make network namespaces: it runs
// them again in a user namespace if that is needed, and exits. Scenarios mostly wait,
// so several of them run at once even on fewer processors, unless the command line
// sets another number.
func Main(m *testing.M, atOnce int) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", fmt.Sprint(atOnce)); err != nil {
			panic(err)
		}
	}
	const again = "TANDEM_TEST_IN_USER_NAMESPACE"
	if lab.Available() == nil || os.Getenv(again) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), again+"=1")
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdout, os.Stderr, lab.UserNamespace()
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Printf("no user namespace either: %v\n", err)
		os.Exit(m.Run())
	}
	os.Exit(0)
}

// building makes the program once for all tests, unless TANDEM_TEST_BIN names
// it: where the tests run there may be no compiler.
var building = sync.OnceValues(func() (string, error) {
	if made := os.Getenv("TANDEM_TEST_BIN"); made != "" {
		return made, nil
	}
	dir, err := os.MkdirTemp("", "tandem-test-")
	if err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", "-o", dir, "../../cmd/tandem").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return filepath.Join(dir, "tandem"), nil
})

// Program returns the path of tandem.
func Program(t *testing.T) string {
	t.Helper()
	bin, err := building()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// fewest is how often Eventually tries before it gives up, however long that takes: on a
// machine that stands still, time passes and nothing is tried.
const fewest = 100

// Eventually tries until it works, and returns how long that took.
func Eventually(t *testing.T, within time.Duration, what string, try func() error) time.Duration {
	t.Helper()
	begin := time.Now()
	for tries := 1; ; tries++ {
		err := try()
		if err == nil {
			return time.Since(begin)
		}
		if time.Since(begin) > within && tries >= fewest {
			t.Fatalf("%s: not within %s and %d attempts: %v", what, within, tries, err)
		}
		time.Sleep(time.Millisecond)
	}
}
