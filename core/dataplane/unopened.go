// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"errors"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// Unopened stands for a data plane that cannot be opened yet (ErrNotReady): it holds nothing,
// and what it is asked to read or to write fails.
func Unopened() Backend { return New(unopenedCompiler{}, unopenedDriver{}) }

type none = struct{}

type unopenedCompiler struct{ SimpleCompiler[none, none] }

func (unopenedCompiler) Base(*model.Host, func(none, none)) {}

func (unopenedCompiler) Port(*model.Host, *model.Port, func(none, none)) []model.Gap { return nil }

func (unopenedCompiler) Rank(none) int { return 0 }

func (unopenedCompiler) Equal(none, none) bool { return true }

type unopenedDriver struct{ SimpleDriver[none, none] }

var errUnopened = errors.New("the data plane is not open yet")

func (unopenedDriver) Observe(context.Context, func(none, none)) error { return errUnopened }

func (unopenedDriver) Commit(_ context.Context, ops []ledger.Op[none, none]) []error {
	errs := make([]error, len(ops))
	for i := range errs {
		errs[i] = errUnopened
	}
	return errs
}

func (unopenedDriver) Limits() Limits { return Limits{} }

func (unopenedDriver) Close() error { return nil }
