// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/conformance"
)

// Whichever write of a change is the last one, no client reaches endpoints of another policy: a frontend
// without endpoints has no entry for pods, and gets one beside those for all others when the first come.
func TestEachWriteOfAChange(t *testing.T) {
	suite().EachWrite(t)
}

// An address passes to another Service.
func TestEachWriteOfPassing(t *testing.T) { suite().EachWriteOfPassing(t, model.Cluster, model.Local) }

func suite() conformance.Suite[Key, Value] {
	return conformance.Suite[Key, Value]{
		Mode: "userspace", Compiler: NewCompiler(someMark),
		Sim: func(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
			return NewSim(objects, host).Decide
		},
	}
}
