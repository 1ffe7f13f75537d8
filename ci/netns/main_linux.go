// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"

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
