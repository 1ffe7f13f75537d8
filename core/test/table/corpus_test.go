// SPDX-License-Identifier: Apache-2.0

package table_test

import (
	"testing"

	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/core/test/table"
)

func TestCorpus(t *testing.T) {
	conformance.Run(t, conformance.Suite[table.Key, table.Value]{Mode: "table", Compiler: table.Compiler{}, Sim: table.Simulate})
}
