// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv(asProxy) != "" {
		serveRemote()
		return
	}
	Main(m, 4)
}
