// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// mostProblems bounds the problems that are kept and passed to a sink: a faulty controller
// may write thousands of invalid objects. Of those beyond it only their number is known, and
// which objects have them: these are named when the problems of others are gone.
const mostProblems = 1000

// problems are what is wrong with objects, at most mostProblems. Namespaces share the places: when
// all are taken, the one with the most gives way to one that has fewer.
type problems struct {
	kept    int // in all
	omitted int // problems of objects none of which is kept
	of      map[string]*namespaceProblems
}

// namespaceProblems are those of the objects of one namespace, or of those that have none.
type namespaceProblems struct {
	objects map[model.Key][]model.Problem
	kept    int                    // how many problems there are in it
	waiting map[model.Key]omission // objects with problems none of which is kept: no more than followers know
}

// omission is what is kept of the problems of an object that waits for room.
type omission struct {
	count int
	first model.Problem // without its detail
}

func omit(all []model.Problem) omission {
	first := all[0]
	first.Detail, first.Fix = "", ""
	return omission{len(all), first}
}

// problem names the object.
func (o omission) problem() model.Problem {
	p := o.first
	if p.Detail = "details omitted until the object changes"; o.count > 1 {
		p.Detail = fmt.Sprintf("the first of %d problems, which are listed when the object changes", o.count)
	}
	return p
}

// has reports whether all of these, and no others, are known of an object.
func (p *problems) has(s model.Key, all []model.Problem) bool {
	n := p.of[s.Namespace]
	if n == nil {
		return len(all) == 0
	}
	_, waits := n.waiting[s]
	return slices.Equal(n.objects[s], all) && !waits
}

// set replaces the problems of an object.
func (p *problems) set(s model.Key, all []model.Problem) {
	n := p.of[s.Namespace]
	if n == nil {
		if len(all) == 0 {
			return
		}
		n = &namespaceProblems{objects: map[model.Key][]model.Problem{}, waiting: map[model.Key]omission{}}
		if p.of == nil {
			p.of = map[string]*namespaceProblems{}
		}
		p.of[s.Namespace] = n
	}
	p.forget(n, s)
	p.makeRoom(n, len(all))
	switch room := mostProblems - p.kept; {
	case len(all) == 0:
	case room > 0:
		some := slices.Clone(all[:min(len(all), room)])
		p.keep(n, s, model.More(some, len(all)-len(some)))
	default:
		p.wait(n, s, omit(all))
	}
	p.promote()
	if len(n.objects)+len(n.waiting) == 0 {
		delete(p.of, s.Namespace)
	}
}

func (p *problems) keep(n *namespaceProblems, s model.Key, all []model.Problem) {
	n.objects[s] = all
	n.kept, p.kept = n.kept+len(all), p.kept+len(all)
}

func (p *problems) wait(n *namespaceProblems, s model.Key, o omission) {
	n.waiting[s] = o
	p.omitted += o.count
}

func (p *problems) forget(n *namespaceProblems, s model.Key) {
	had := len(n.objects[s])
	n.kept, p.kept = n.kept-had, p.kept-had
	p.omitted -= n.waiting[s].count
	delete(n.objects, s)
	delete(n.waiting, s)
}

// makeRoom has objects of the namespaces with the most problems wait, for so many of another that has fewer.
func (p *problems) makeRoom(n *namespaceProblems, more int) {
	for room := mostProblems - p.kept; room < more; room = mostProblems - p.kept {
		largest := n
		for _, other := range p.of {
			if other.kept > largest.kept {
				largest = other
			}
		}
		if largest.kept <= n.kept+room+1 {
			return
		}
		for s, all := range largest.objects { // any of them
			p.forget(largest, s)
			p.wait(largest, s, omit(all))
			break
		}
	}
}

// promote names objects that wait, as far as there is room: mostly for as many as one object had
// problems. Of the namespaces, that with the fewest is first.
func (p *problems) promote() {
	for p.omitted > 0 && p.kept < mostProblems {
		var fewest *namespaceProblems
		for _, n := range p.of {
			if len(n.waiting) > 0 && (fewest == nil || n.kept < fewest.kept) {
				fewest = n
			}
		}
		for s, o := range fewest.waiting { // any of them
			p.forget(fewest, s)
			p.keep(fewest, s, []model.Problem{o.problem()})
			break
		}
	}
}

// all returns the problems that are kept, in no order.
func (p *problems) all() (all []model.Problem) {
	for _, n := range p.of {
		for _, ps := range n.objects {
			all = append(all, ps...)
		}
	}
	return all
}
