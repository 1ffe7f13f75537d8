// SPDX-License-Identifier: Apache-2.0

package relay

// indexed is a heap of items that know their place in it, so that any of them can be moved and
// removed. It implements heap.Interface.
type indexed[T item[T]] []T

type item[T any] interface {
	before(T) bool   // whether it comes first
	moved(place int) // notes its place
}

func (h indexed[T]) Len() int           { return len(h) }
func (h indexed[T]) Less(i, j int) bool { return h[i].before(h[j]) }

func (h indexed[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].moved(i)
	h[j].moved(j)
}

// Push implements heap.Interface.
func (h *indexed[T]) Push(x any) {
	one := x.(T)
	one.moved(len(*h))
	*h = append(*h, one)
}

// Pop implements heap.Interface.
func (h *indexed[T]) Pop() any {
	last := len(*h) - 1
	one := (*h)[last]
	clear((*h)[last:])
	*h = (*h)[:last]
	return one
}
