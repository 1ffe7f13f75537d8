// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/tandem-proxy/tandem/core/wire"
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
		kind := wire.Type(r.Header.Get("Accept"))
		text, err := p.ask(r.Context(), r.PathValue("name"), body, kind)
		send(w, kind, text, err)
	}}
}

// ask finds the query and returns its answer as content of a type. However many clients ask, one answer
// is made at a time, and beside it one of those that read the data plane: changes find a
// processor. What a client takes to read its answer is nobody's wait.
func (p *Proxy) ask(ctx context.Context, name string, body []byte, kind string) (text []byte, err error) {
	all := queries()
	i := slices.IndexFunc(all, func(q query) bool { return q.name() == name })
	if i < 0 {
		return nil, fmt.Errorf("unknown query %.40q: is the running tandem another version?", name)
	}
	q, turn, limit := all[i], p.answers, answerLimit
	if q.reads() {
		turn, limit = p.kernel, readLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := turn.take(ctx); err != nil {
		return nil, fmt.Errorf("other queries are answered: %w", err)
	}
	defer turn.give()
	found, err := q.ask(ctx, p, body)
	if err != nil {
		return nil, err
	}
	return wire.Marshal(kind, found)
}
