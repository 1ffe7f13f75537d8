// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
)

// maxRequest bounds a question: plan sends manifests.
const maxRequest = 64 << 20

// queries are all there are.
func queries() []query {
	return []query{Explain(), Outcomes(), Trace(), Drift(), Services(), History(), Top(), Preview()}
}

// queryRoute answers queries on the control socket.
func (p *Proxy) queryRoute() route {
	return route{"POST /query/{name}", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
		if err != nil {
			if errors.As(err, new(*http.MaxBytesError)) {
				err = fmt.Errorf("request larger than %d MiB: send fewer manifests at a time", maxRequest>>20)
			}
			reply(w, r, nil, err)
			return
		}
		found, err := p.ask(r.Context(), r.PathValue("name"), body)
		reply(w, r, found, err)
	}}
}

// ask finds the query and has it answered.
func (p *Proxy) ask(ctx context.Context, name string, body []byte) (any, error) {
	all := queries()
	i := slices.IndexFunc(all, func(q query) bool { return q.name() == name })
	if i < 0 {
		return nil, fmt.Errorf("unknown query %.40q: is the running tandem another version?", name)
	}
	return all[i].ask(ctx, p, body)
}
