// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
)

// maxRequest bounds a question: plan sends manifests.
const maxRequest = 16 << 20

// queries are all there are.
func queries() []query {
	return []query{Explain(), Outcomes(), Trace(), Drift(), Services(), Preview()}
}

// queryRoute answers queries on the control socket.
func (p *Proxy) queryRoute() route {
	return route{"POST /query/{name}", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
		if err != nil {
			reply(w, nil, err)
			return
		}
		answer, err := p.ask(r.Context(), r.PathValue("name"), body)
		reply(w, answer, err)
	}}
}

// ask finds the query and has it answered.
func (p *Proxy) ask(ctx context.Context, name string, body []byte) (any, error) {
	all := queries()
	i := slices.IndexFunc(all, func(q query) bool { return q.name() == name })
	if i < 0 {
		return nil, fmt.Errorf("this tandem knows no query %.40q: is it of another version?", name)
	}
	return all[i].ask(ctx, p, body)
}
