// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"fmt"

	"github.com/tandem-proxy/tandem/core/history"
)

// History is the query of tandem history. It does not use the engine's goroutine.
func History() Query[history.Filter, history.Document] {
	return Query[history.Filter, history.Document]{Name: "history", answer: pastOf}
}

func pastOf(_ context.Context, p *Proxy, f history.Filter) (history.Document, error) {
	if f.Limit < 0 {
		return history.Document{}, fmt.Errorf("limit %d: must not be negative", f.Limit)
	}
	return p.engine.History().Find(f), nil
}
