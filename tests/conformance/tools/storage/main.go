// Runs Kubernetes' tests of storage drivers against the driver that the file of --storage.testdriver describes.
//
// It is the part of Kubernetes' e2e.test that does so, because all of it takes long to compile. The program ginkgo
// starts it, several times for tests in parallel.
package main

import (
	"flag"
	"os"
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/storage/external"
)

// result is what ginkgo reports the end to.
type result struct{ failed bool }

func (r *result) Fail() { r.failed = true }

func main() {
	// ginkgo also passes the flags of programs that "go test" builds.
	testing.Init()
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	framework.AfterReadingAllFlags(&framework.TestContext)

	gomega.RegisterFailHandler(framework.Fail)
	suite, reporter := framework.CreateGinkgoConfig()
	var result result
	ginkgo.RunSpecs(&result, "Kubernetes' tests of storage drivers", suite, reporter)
	if result.failed {
		os.Exit(1)
	}
}
