// SPDX-License-Identifier: Apache-2.0

package table

import (
	"testing"

	"github.com/tandem-proxy/tandem/core/test/conformance"
)

func TestCorpus(t *testing.T) {
	conformance.Run(t, conformance.Suite[Key, Value]{Mode: "table", Compiler: Compiler{}, Sim: simulate})
}
