// SPDX-License-Identifier: Apache-2.0

package table

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/memory"
)

// Mode is the mode of the made-up kernel, whose table is in memory.
func Mode() dataplane.Mode {
	return dataplane.Mode{
		Name: "table", OnRequest: true,
		Probe: func(context.Context) error { return nil },
		Open: func(context.Context, *config.Config, *slog.Logger) (dataplane.Backend, error) {
			return dataplane.New(Compiler{}, memory.New[Key](Compiler{}.Equal, dataplane.Limits{Atomic: true})), nil
		},
		Plan: func(_ *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
			return dataplane.PlanOf(Compiler{}, host, ports, Text)
		},
	}
}

// Text lists the entries of the table.
func Text(objects map[Key]Value) string {
	var lines []string
	for k, v := range objects {
		line := fmt.Sprintf("%s %s from %s: %s", k.Proto, k.At, k.Origin, v.Verdict)
		switch {
		case k == Key{}:
			line = fmt.Sprintf("other addresses of %v: %s", v.Ranges, v.Verdict)
		case k.At.Port() == 0:
			line = fmt.Sprintf("other ports of %s: %s", k.At.Addr(), v.Verdict)
		}
		for _, e := range v.Endpoints {
			line += " " + e.Addr.String()
		}
		lines = append(lines, line+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
