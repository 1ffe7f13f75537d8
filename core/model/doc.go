// SPDX-License-Identifier: Apache-2.0

// Package model is Tandem's vocabulary: plain values that every other package
// uses, with no Kubernetes types, no I/O and no clock.
//
//	inputs                          desired state
//	Service ─┐                      Port ── Frontend ── On[Origin] = Action ── Pool
//	Slice  ──┼── core/resolve ──▶   (one Service port of one IP family)
//	Host   ──┘
//
// Inputs are what a source (the API server, a folder of manifests) provides.
// A Port is what the policy makes of them: for each address (Frontend) and each
// kind of sender (Origin) the finished Action. Nothing after core/resolve decides
// by traffic policies, readiness or hints again; which packets are pods' compilers have from Host.Pods.
//
// Every value here is immutable once it has been handed on: a change is a new
// value. Pointers may therefore be shared freely between goroutines.
package model
