// Command cri asks a container runtime for pod sandboxes, as kubelet does, over the CRI socket.
//
//	cri status                       network condition of the runtime, as JSON
//	cri run -n 20 -c 5 -prefix a     makes 20 sandboxes, 5 at a time; one JSON line for each
//	cri list                         ids of the ready sandboxes (-all: of all)
//	cri stop ID…  | cri remove ID…   the same for every sandbox that is named; -all: for all there are
//
// A line of `run` is {"name","id","ip","netns","ms","result"} or {"name","error","ms"}; a line of `stop` and
// `remove` is {"id","ms"} or {"id","error","ms"}. The exit status is 1 when any of them failed.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type line struct {
	Name   string          `json:"name,omitempty"`
	ID     string          `json:"id,omitempty"`
	IP     string          `json:"ip,omitempty"`
	Netns  string          `json:"netns,omitempty"`
	Ms     float64         `json:"ms"`
	Error  string          `json:"error,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
}

var (
	flags   = flag.NewFlagSet("cri", flag.ExitOnError)
	socket  = flags.String("socket", "/run/containerd/containerd.sock", "the runtime's CRI socket")
	count   = flags.Int("n", 1, "number of sandboxes")
	width   = flags.Int("c", 1, "how many at a time")
	prefix  = flags.String("prefix", "pod", "beginning of their names")
	all     = flags.Bool("all", false, "all sandboxes")
	cgroup  = flags.String("cgroup", "/fairlead-test", "parent of the sandboxes' cgroups")
	timeout = flags.Duration("timeout", time.Minute, "time limit of one call")
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "cri: say what to do: status, run, list, stop or remove")
		os.Exit(2)
	}
	command := os.Args[1]
	flags.Parse(os.Args[2:]) //nolint:errcheck // it exits by itself
	connection, err := grpc.NewClient("unix://"+*socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fail(err)
	}
	runtime := cri.NewRuntimeServiceClient(connection)
	switch command {
	case "status":
		status(runtime)
	case "run":
		names := make([]string, *count)
		for i := range names {
			names[i] = fmt.Sprintf("%s-%d", *prefix, i)
		}
		each(names, func(name string) line { return run(runtime, name) })
	case "list":
		for _, id := range list(runtime, !*all) {
			fmt.Println(id)
		}
	case "stop":
		each(named(runtime), func(id string) line {
			return end(id, func(ctx context.Context) error {
				_, err := runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
				return err
			})
		})
	case "remove":
		each(named(runtime), func(id string) line {
			return end(id, func(ctx context.Context) error {
				_, err := runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
				return err
			})
		})
	default:
		fail(fmt.Errorf("%q is not one of status, run, list, stop, remove", command))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "cri:", err)
	os.Exit(1)
}

func call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), *timeout)
}

// each does one thing for every name, *width at a time, and prints what became of it as soon as it is known.
func each(names []string, do func(string) line) {
	var work sync.WaitGroup
	var out sync.Mutex
	failed := false
	slots := make(chan struct{}, *width)
	for _, name := range names {
		work.Add(1)
		slots <- struct{}{}
		go func() {
			defer func() { <-slots; work.Done() }()
			begun := time.Now()
			l := do(name)
			l.Ms = float64(time.Since(begun).Microseconds()) / 1000
			text, err := json.Marshal(l)
			out.Lock()
			defer out.Unlock()
			failed = failed || l.Error != "" || err != nil
			fmt.Println(string(text))
		}()
	}
	work.Wait()
	if failed {
		os.Exit(1)
	}
}

func run(runtime cri.RuntimeServiceClient, name string) line {
	ctx, cancel := call()
	defer cancel()
	l := line{Name: name}
	made, err := runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name, Attempt: 0},
		LogDirectory: "/run/log",
		Linux:        &cri.LinuxPodSandboxConfig{CgroupParent: *cgroup},
	}})
	if err != nil {
		l.Error = err.Error()
		return l
	}
	l.ID = made.PodSandboxId
	told, err := runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: l.ID, Verbose: true})
	if err != nil {
		l.Error = err.Error()
		return l
	}
	l.IP = told.GetStatus().GetNetwork().GetIp()
	l.Netns, l.Result = details(told.GetInfo()["info"])
	return l
}

// details reads the namespace's path and the plugins' result out of containerd's own information.
func details(text string) (string, json.RawMessage) {
	var info struct {
		Result json.RawMessage `json:"cniResult"`
		Spec   struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		} `json:"runtimeSpec"`
	}
	if json.Unmarshal([]byte(text), &info) != nil {
		return "", nil
	}
	for _, namespace := range info.Spec.Linux.Namespaces {
		if namespace.Type == "network" {
			return namespace.Path, info.Result
		}
	}
	return "", info.Result
}

func end(id string, do func(context.Context) error) line {
	ctx, cancel := call()
	defer cancel()
	l := line{ID: id}
	if err := do(ctx); err != nil {
		l.Error = err.Error()
	}
	return l
}

func named(runtime cri.RuntimeServiceClient) []string {
	if *all {
		return list(runtime, false)
	}
	return flags.Args()
}

func list(runtime cri.RuntimeServiceClient, ready bool) []string {
	ctx, cancel := call()
	defer cancel()
	request := &cri.ListPodSandboxRequest{}
	if ready {
		request.Filter = &cri.PodSandboxFilter{State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY}}
	}
	answer, err := runtime.ListPodSandbox(ctx, request)
	if err != nil {
		fail(err)
	}
	ids := make([]string, 0, len(answer.Items))
	for _, sandbox := range answer.Items {
		ids = append(ids, sandbox.Id)
	}
	return ids
}

func status(runtime cri.RuntimeServiceClient) {
	ctx, cancel := call()
	defer cancel()
	answer, err := runtime.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		fail(err)
	}
	for _, condition := range answer.GetStatus().GetConditions() {
		if condition.Type == "NetworkReady" {
			text, _ := json.Marshal(condition)
			fmt.Println(string(text))
			if !condition.Status {
				os.Exit(1)
			}
		}
	}
}
