"""How helpers of kernels are compiled: as far as it takes to put them into kernels, no further.

numba optimizes every function on its own and makes machine code of it. Of a helper, which becomes
a part of the kernels that call it, nobody needs that: the kernel is optimized as a whole.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

import numba._dynfunc as dynfunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering


class _Library(JITCodeLibrary):
    """LLVM's code of a helper, which is there to be linked into kernels alone."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    _name = "helper_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower a helper, and make it known to what calls it."""
        state.library = _Library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        made = state.cr
        name, of = made.fndesc.qualname.rpartition(".")[2], made.fndesc.lookup_module()
        key = dynfunc.make_function(of, name, "", 0, made.env, (state.library,))
        state.targetctx.insert_user_function(key, made.fndesc, [state.library])
        state.reload_init.extend(state.library._reload_init)
        state.cr = made._replace(cfunc=key)
        return True


class HelperCompiler(Compiler):
    """numba's pipeline, with another last step."""

    def define_pipelines(self) -> Any:
        """Return the passes."""
        pipelines = super().define_pipelines()
        for passes in pipelines:
            passes.passes = [
                (_Lowering if step is NativeLowering else step, text)
                for step, text in passes.passes
            ]
        return pipelines
