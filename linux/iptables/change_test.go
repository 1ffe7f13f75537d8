// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/conformance"
)

// Objects of one port are written in one transaction. If that were not so, it would be all the same.
func TestEachWriteOfAChange(t *testing.T) {
	suite().EachWrite(t)
}

// An address passes to another Service.
func TestEachWriteOfPassing(t *testing.T) { suite().EachWriteOfPassing(t, model.Cluster, model.Local) }

func suite() conformance.Suite[Key, Value] {
	return conformance.Suite[Key, Value]{
		Mode: "iptables", Compiler: NewCompiler(Options{}),
		Sim: func(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
			return NewSim(objects, host).Decide
		},
	}
}
