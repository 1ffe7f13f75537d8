// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/diagnosis"
)

// Where an address is taken, what to do is said in commands that the system has.
func TestAnAddressThatIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	checks := examineListeners(&config.Config{HealthAddress: l.Addr().String()})
	if len(checks) != 1 || checks[0].Level != diagnosis.Warn || !strings.Contains(checks[0].Fix, diagnosis.Listeners(runtime.GOOS)) {
		t.Errorf("%+v", checks)
	}
	if tool := diagnosis.Listeners("windows"); !strings.HasPrefix(tool, "netstat") {
		t.Errorf("Windows has no %s", tool)
	}
}
